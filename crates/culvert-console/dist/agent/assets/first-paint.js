// Sets the colour scheme before anything is painted. Runs ahead of the app, so it stays this small.
(() => {
  const darkness = matchMedia('(prefers-color-scheme: dark)');
  const set = () => {
    let chosen = null;
    try {
      chosen = localStorage.getItem('mantine-color-scheme-value');
    } catch {
      // No storage: the system's scheme counts.
    }
    const dark = chosen === 'dark' || (chosen !== 'light' && darkness.matches);
    document.documentElement.setAttribute(
      'data-mantine-color-scheme',
      dark ? 'dark' : 'light',
    );
  };
  set();
  darkness.addEventListener('change', set);
  // Another tab chose other colours.
  addEventListener('storage', set);
})();
