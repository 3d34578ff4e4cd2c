import { queryOptions } from '@tanstack/react-query';
import { call } from '@/api/http';
import { type JsonObject, isObject } from '@/api/json';
import type { Resource } from '@/api/model';
import { items } from './names';

export const PAGE = 50;

export interface ListSearch {
  filter?: string | undefined;
  before?: string | undefined;
}

export interface ListPageData {
  objects: JsonObject[];
  next: string | undefined;
}

export async function listAt(
  path: string,
  key: string,
  search: ListSearch,
  limit: number,
  signal?: AbortSignal,
): Promise<ListPageData> {
  const query = new URLSearchParams({ limit: String(limit) });
  if (search.filter) query.set('filter', search.filter);
  if (search.before) query.set('before_id', search.before);
  const page = await call('GET', `${path}?${query}`, undefined, signal);
  const uri = isObject(page) ? page.next_page_uri : null;
  const next =
    typeof uri === 'string'
      ? (new URL(uri, location.origin).searchParams.get('before_id') ??
        undefined)
      : undefined;
  return { objects: items(page, key), next };
}

/** Queries of a resource share the key `[name]`, so that a change makes all of them new. */
export function listQuery(
  resource: Resource,
  search: ListSearch = {},
  limit = PAGE,
) {
  return queryOptions({
    queryKey: [resource.name, 'list', search, limit],
    queryFn: ({ signal }) =>
      listAt(`/${resource.name}`, resource.listKey, search, limit, signal),
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
