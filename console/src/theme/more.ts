import href from './more.css?url';

let loading: Promise<void> | undefined;

/** Loads the styles that the overview does without, once. The console's own come after them, so that they count. */
export function moreStyles(): Promise<void> {
  loading ??= new Promise((resolve, reject) => {
    const link = document.createElement('link');
    link.rel = 'stylesheet';
    link.href = href;
    link.addEventListener('load', () => resolve());
    link.addEventListener('error', () => {
      link.remove();
      loading = undefined;
      reject(new Error('A style sheet of the console could not be loaded.'));
    });
    const own = document.querySelector(
      'link[rel="stylesheet"][href*="/assets/app.css"]',
    );
    document.head.insertBefore(link, own);
  });
  return loading;
}
