import { useSyncExternalStore } from 'react';

// first-paint.js reads both before anything is painted.
const KEPT = 'mantine-color-scheme-value';
const SCHEME = 'data-mantine-color-scheme';

const isDarkNow = () =>
  document.documentElement.getAttribute(SCHEME) === 'dark';

function watch(watcher: () => void): () => void {
  const observer = new MutationObserver(watcher);
  observer.observe(document.documentElement, { attributeFilter: [SCHEME] });
  return () => observer.disconnect();
}

/** The other colours than those that the page has: what they are called, and a call that takes them. */
export function useScheme() {
  const isDark = useSyncExternalStore(watch, isDarkNow);
  const other = isDark ? 'light' : 'dark';
  return {
    isDark,
    label: `Use ${other} colours`,
    toggle: () => {
      document.documentElement.setAttribute(SCHEME, other);
      try {
        localStorage.setItem(KEPT, other);
      } catch {
        // No storage: they are as they were when the page is loaded again.
      }
    },
  };
}
