import { useSyncExternalStore } from 'react';

/** The build that this page is of: every file of the console is asked for with it. Nothing in a development server. */
const OWN = new URL(import.meta.url).searchParams.get('v');

/** The server has files of another build than this page. */
export class OldConsoleError extends Error {
  constructor() {
    super('The server was upgraded, and this page is of the version before.');
    this.name = 'OldConsoleError';
  }
}

const watchers = new Set<() => void>();
let old = false;

/** Whether the server has another build by now. What it does not answer is no other build. */
export async function isOld(): Promise<boolean> {
  if (OWN === null || old) return old;
  const page = await fetch('/console/', { cache: 'no-cache' }).catch(
    () => undefined,
  );
  const [, now] =
    /app\.js\?v=(\w+)/.exec(page?.ok ? await page.text() : '') ?? [];
  if (now !== undefined && now !== OWN) {
    old = true;
    for (const watcher of watchers) watcher();
  }
  return old;
}

export function useIsOld(): boolean {
  return useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => old,
  );
}
