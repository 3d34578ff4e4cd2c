import { useSyncExternalStore } from 'react';
import css from './ui.module.css';

let message = '';
let timer: ReturnType<typeof setTimeout> | undefined;
const watchers = new Set<() => void>();

function set(next: string): void {
  message = next;
  for (const watcher of watchers) watcher();
}

/** Says for a moment what was done, also to screen readers. */
export function announce(next: string): void {
  clearTimeout(timer);
  set(next);
  timer = setTimeout(() => set(''), 4000);
}

function watch(watcher: () => void): () => void {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}

export function Toast() {
  const shown = useSyncExternalStore(watch, () => message);
  return (
    <div
      className={css.toast}
      role="status"
      aria-live="polite"
      data-shown={shown !== ''}
    >
      {shown}
    </div>
  );
}
