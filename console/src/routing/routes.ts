// The table of pages: which components an address shows, from the outer to the inner one.
import type { ComponentType } from 'react';

/** A component in a file of its own. */
export interface Page {
  Component: ComponentType;
  /** Loads its file, once. */
  load: () => Promise<unknown>;
}

interface Route {
  parts: string[];
  pages: Page[];
}

const routes: Route[] = [];

/** Adds an address, such as `/$collection/$id`. Of those that fit, the first counts. */
export function route(path: string, ...pages: Page[]): void {
  routes.push({ parts: path.split('/').filter(Boolean), pages });
}

const decoded = (part: string): string => {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
};

/** The pages of a path and the values of its parameters; nothing for a path that no page has. */
export function match(
  pathname: string,
): { pages: Page[]; params: Record<string, string> } | undefined {
  const given = pathname.split('/').filter(Boolean).map(decoded);
  for (const { parts, pages } of routes) {
    const fits =
      parts.length === given.length &&
      parts.every((part, at) => part.startsWith('$') || part === given[at]);
    if (!fits) continue;
    const params: Record<string, string> = {};
    for (const [at, part] of parts.entries())
      if (part.startsWith('$')) params[part.slice(1)] = given[at] ?? '';
    return { pages, params };
  }
  return undefined;
}

/** Loads the files of the pages of a path. */
export async function loadRoute(pathname: string): Promise<void> {
  const pages = match(pathname)?.pages ?? [];
  await Promise.all(pages.map((page) => page.load()));
}
