// Where the console is: the address behind `/console`, and the way to another one. A page is shown when its file is there, or
// after a while with a sign that it is being loaded.
import { loadRoute } from './routes';

const BASE = '/console';
/** A page that is not there after this is shown as being loaded, until then the page before stays. */
const PATIENCE_MS = 1000;

export interface Place {
  /** Without the base: `/` for the overview. */
  pathname: string;
  search: Record<string, string>;
  /** Names this entry of the browser's history. */
  key: string;
  /** Where to scroll when it is shown: to its top, to where the person was, or nowhere. */
  scroll: 'top' | 'back' | 'stay';
}

/** The names in a path that `params` has values for: those after `$`. */
export type ParamsOf<P extends string> =
  P extends `${string}$${infer Name}/${infer Rest}`
    ? Name | ParamsOf<`/${Rest}`>
    : P extends `${string}$${infer Name}`
      ? Name
      : never;

/** An address of the console. Without `search`, it has none; `true` is that of now. */
export type Target<P extends string = string> = {
  to: P;
  search?: object | true | undefined;
  replace?: boolean;
  /** Whether the page is shown from its top, as is usual. */
  resetScroll?: boolean;
} & ([ParamsOf<P>] extends [never]
  ? { params?: Record<string, string> | undefined }
  : { params: Record<ParamsOf<P>, string> });

const keyOf = (state: unknown): string =>
  typeof state === 'object' &&
  state !== null &&
  'key' in state &&
  typeof state.key === 'string'
    ? state.key
    : '';

function read(scroll: Place['scroll']): Place {
  const { pathname, search } = globalThis.location;
  const path = pathname.startsWith(BASE)
    ? pathname.slice(BASE.length)
    : pathname;
  return {
    pathname: path.replace(/(?<=.)\/+$/, '') || '/',
    search: Object.fromEntries(new URLSearchParams(search)),
    key: keyOf(history.state),
    scroll,
  };
}

let keys = 0;
const newKey = (): string => {
  keys += 1;
  return `${Date.now().toString(36)}-${keys}`;
};

let place = read('back');
const watchers = new Set<() => void>();

export const watchPlace = (watcher: () => void): (() => void) => {
  watchers.add(watcher);
  return () => watchers.delete(watcher);
};
export const placeNow = (): Place => place;

/** How far down the pages of the browser's history were, by their keys; the newest last. */
const SCROLLED = 'culvert-scrolled';
const SCROLLED_MAX = 100;

export function scrolledTo(key: string): number {
  try {
    const all = new Map<string, number>(
      JSON.parse(sessionStorage.getItem(SCROLLED) ?? '[]') as [],
    );
    return all.get(key) ?? 0;
  } catch {
    return 0;
  }
}

function keepScroll(): void {
  try {
    const all = new Map<string, number>(
      JSON.parse(sessionStorage.getItem(SCROLLED) ?? '[]') as [],
    );
    all.delete(place.key);
    all.set(place.key, window.scrollY);
    sessionStorage.setItem(
      SCROLLED,
      JSON.stringify([...all].slice(-SCROLLED_MAX)),
    );
  } catch {
    // No storage: pages begin at their top.
  }
}

let turns = 0;

/** Shows the address of now when its page is there. Who goes on before that does not see it. */
async function show(scroll: Place['scroll']): Promise<void> {
  turns += 1;
  const turn = turns;
  const next = read(scroll);
  let timer = 0;
  const patience = new Promise((resolve) => {
    timer = window.setTimeout(resolve, PATIENCE_MS);
  });
  // The page itself says what failed.
  await Promise.race([loadRoute(next.pathname).catch(() => {}), patience]);
  clearTimeout(timer);
  if (turn !== turns) return;
  place = next;
  for (const watcher of watchers) watcher();
}

/** The path of a target, without the base. */
export function pathOf({ to, params }: Target): string {
  return to.replaceAll(/\$(\w+)/g, (whole, name: string) => {
    const value = (params as Record<string, string> | undefined)?.[name];
    return value === undefined ? whole : encodeURIComponent(value);
  });
}

/** The search of a target, without what is not set. */
export function searchOf({ search }: Target): Record<string, string> {
  if (search === true) return place.search;
  return Object.fromEntries(
    Object.entries(search ?? {})
      .filter(([, value]) => value !== undefined)
      .map(([name, value]) => [name, String(value)]),
  );
}

export function hrefOf(target: Target): string {
  const search = new URLSearchParams(searchOf(target)).toString();
  return `${BASE}${pathOf(target)}${search ? `?${search}` : ''}`;
}

/** Goes to an address of the console; ends when that is shown. */
export function go(
  href: string,
  replace: boolean,
  scroll: Place['scroll'],
): Promise<void> {
  keepScroll();
  if (replace || href === location.pathname + location.search)
    history.replaceState({ key: place.key }, '', href);
  else history.pushState({ key: newKey() }, '', href);
  return show(scroll);
}

/** Goes to a page; ends when that is shown. */
export function navigate<P extends string>(target: Target<P>): Promise<void> {
  return go(
    hrefOf(target as Target),
    target.replace ?? false,
    target.resetScroll === false ? 'stay' : 'top',
  );
}

/** Begins to follow the browser's history. */
export function followHistory(): void {
  history.scrollRestoration = 'manual';
  if (!place.key) {
    history.replaceState({ key: newKey() }, '');
    place = read('top');
  }
  addEventListener('popstate', () => {
    keepScroll();
    void show('back');
  });
  addEventListener('pagehide', keepScroll);
}
