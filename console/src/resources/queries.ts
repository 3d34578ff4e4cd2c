import { queryOptions } from '@tanstack/react-query';
import { call } from '@/api/http';
import { type Json, type JsonObject, isObject } from '@/api/json';
import type { Resource } from '@/api/model';
import { word } from '@/live/where';
import { items } from './names';

export const PAGE = 50;

export interface ListSearch {
  /** A condition in CEL on `obj`. */
  filter?: string | undefined;
  /** Words. */
  q?: string | undefined;
  /** A field, after `-` for the largest value first. */
  order?: string | undefined;
}

/** What of a list the page's address has. */
export interface ListAddress extends ListSearch {
  /** Keys of columns, separated by commas. */
  columns?: string | undefined;
}

export const listAddressOf = (
  search: Record<string, unknown>,
): ListAddress => ({
  filter: word(search.filter),
  // The box of a list holds one of both.
  q: search.filter ? undefined : word(search.q),
  order: word(search.order),
  columns: word(search.columns),
});

export interface ListPageData {
  objects: JsonObject[];
  /** Where the next page begins: an ID in a list, a cursor in a search. */
  next: string | undefined;
  /** Whether all objects were read. */
  isComplete: boolean;
}

const nextOf = (page: Json, name: string): string | undefined => {
  const uri = isObject(page) ? page.next_page_uri : null;
  return typeof uri === 'string'
    ? (new URL(uri, location.origin).searchParams.get(name) ?? undefined)
    : undefined;
};

export async function listAt(
  path: string,
  key: string,
  search: { filter?: string | undefined; before?: string | undefined },
  limit: number,
  signal?: AbortSignal,
): Promise<ListPageData> {
  const query = new URLSearchParams({ limit: String(limit) });
  if (search.filter) query.set('filter', search.filter);
  if (search.before) query.set('before_id', search.before);
  const page = await call('GET', `${path}?${query}`, undefined, signal);
  return {
    objects: items(page, key),
    next: nextOf(page, 'before_id'),
    isComplete: true,
  };
}

/** What a list is read with. */
type Listed = Pick<Resource, 'name' | 'listKey'>;

/** Whether a list is searched or sorted, which the server does over all objects. */
export const isSearched = ({ q, order }: ListSearch): boolean =>
  q !== undefined || order !== undefined;

/** A page of a list. `after`: where the page before said that it begins. */
export async function pageOf(
  { name, listKey }: Listed,
  search: ListSearch,
  after: string | undefined,
  limit: number,
  signal?: AbortSignal,
): Promise<ListPageData> {
  const { filter, q, order } = search;
  if (!isSearched(search))
    return listAt(
      `/${name}`,
      listKey,
      { filter, before: after },
      limit,
      signal,
    );
  const query = new URLSearchParams({ collection: name, limit: String(limit) });
  for (const [key, value] of Object.entries({ q, filter, order }))
    if (value) query.set(key, value);
  if (after) query.set('cursor', after);
  const page = await call('GET', `/search/objects?${query}`, undefined, signal);
  return {
    objects: items(page, 'objects'),
    next: nextOf(page, 'cursor'),
    isComplete: isObject(page) && page.is_complete !== false,
  };
}

/** Objects that are read at most to sort them here. */
const SORTED_MAX = 5000;

/** All objects of a list, the newest first. */
export function allQuery(resource: Listed, search: ListSearch) {
  return queryOptions({
    queryKey: [resource.name, 'all', search],
    queryFn: async ({ signal }): Promise<ListPageData> => {
      const objects: JsonObject[] = [];
      let isComplete = true;
      let next: string | undefined;
      do {
        const page = await pageOf(resource, search, next, 100, signal);
        objects.push(...page.objects);
        isComplete &&= page.isComplete;
        next = page.next;
      } while (next && objects.length < SORTED_MAX);
      return { objects, next: undefined, isComplete: isComplete && !next };
    },
  });
}

/** Queries of a resource share the key `[name]`, so that a change makes all of them new. */
export function listQuery(
  resource: Listed,
  search: ListSearch = {},
  limit = PAGE,
) {
  return queryOptions({
    queryKey: [resource.name, 'list', search, limit],
    queryFn: ({ signal }) => pageOf(resource, search, undefined, limit, signal),
  });
}

export function objectQuery(name: string, id: string) {
  return queryOptions({
    queryKey: [name, 'object', id],
    queryFn: async ({ signal }) =>
      (await call(
        'GET',
        `/${name}/${encodeURIComponent(id)}`,
        undefined,
        signal,
      )) as JsonObject,
  });
}
