import {
  infiniteQueryOptions,
  keepPreviousData,
  queryOptions,
} from '@tanstack/react-query';
import { call } from '@/api/http';
import { type Json, isObject } from '@/api/json';
import { type KeptEvent, keptEvent } from './entry';

/** What kept events are searched by, as in the page's address. */
export interface KeptSearch {
  filter?: string | undefined;
  type?: string | undefined;
  from?: string | undefined;
  to?: string | undefined;
  object?: string | undefined;
  actor?: string | undefined;
}

export interface KeptPageData {
  /** The newest first. */
  events: KeptEvent[];
  next: string | undefined;
}

const LIMIT = 100;

/** A time of the address, which is local, as the API takes it. */
function instant(local: string | undefined): string | undefined {
  const at = local ? new Date(local) : undefined;
  return at && !Number.isNaN(at.getTime()) ? at.toISOString() : undefined;
}

function withheldOf(page: Json | undefined): string[] {
  const types = isObject(page) ? page.withheld_types : undefined;
  return Array.isArray(types)
    ? types.filter((type) => typeof type === 'string')
    : [];
}

/** The types of a log that only admins may read, if the person is none. */
export function withheldQuery(log: 'audit' | 'traffic') {
  return queryOptions({
    queryKey: ['events', 'withheld', log],
    staleTime: 60_000,
    queryFn: async ({ signal }) =>
      withheldOf(
        await call('GET', `/events?type=${log}&limit=1`, undefined, signal),
      ),
  });
}

export function keptQuery(types: string[], search: KeptSearch) {
  const query = new URLSearchParams({
    limit: String(LIMIT),
    type: types.join(','),
  });
  const given = {
    filter: search.filter,
    from: instant(search.from),
    to: instant(search.to),
    object_id: search.object,
    actor_id: search.actor,
  };
  for (const [name, value] of Object.entries(given))
    if (value) query.set(name, value);
  return infiniteQueryOptions({
    queryKey: ['events', 'kept', query.toString()],
    placeholderData: keepPreviousData,
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page: KeptPageData) => page.next,
    queryFn: async ({ pageParam, signal }): Promise<KeptPageData> => {
      const asked = new URLSearchParams(query);
      if (pageParam) asked.set('cursor', pageParam);
      return pageOf(await call('GET', `/events?${asked}`, undefined, signal));
    },
  });
}

function pageOf(page: Json): KeptPageData {
  const entries =
    isObject(page) && Array.isArray(page.events)
      ? page.events.filter(isObject)
      : [];
  const uri = isObject(page) ? page.next_page_uri : null;
  const next =
    typeof uri === 'string'
      ? (new URL(uri, location.origin).searchParams.get('cursor') ?? undefined)
      : undefined;
  return { events: entries.map(keptEvent), next };
}
