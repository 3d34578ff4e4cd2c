import { infiniteQueryOptions, queryOptions } from '@tanstack/react-query';
import { call } from '@/api/http';
import { type Json, isObject } from '@/api/json';
import { type KeptEvent, keptEvent } from './entry';

/** What events are searched by, as in a page's address. */
export interface EventSearch {
  /** Plain words. */
  q?: string | undefined;
  /** A condition in CEL. */
  filter?: string | undefined;
  type?: string | undefined;
  from?: string | undefined;
  to?: string | undefined;
  object?: string | undefined;
  actor?: string | undefined;
}

/** What `GET /events` takes: the words of a search are conditions here. */
export interface Conditions {
  types: string[];
  filter?: string | undefined;
  from?: string | undefined;
  to?: string | undefined;
  object?: string | undefined;
  actor?: string | undefined;
}

/** How far a search got: back to a time, and the share of its range. */
export interface Searched {
  to: string | null;
  share: number;
}

export interface KeptPage {
  /** The newest first. */
  events: KeptEvent[];
  next: string | undefined;
  searched: Searched | undefined;
}

/** The most events that a page has. */
const LIMIT = 100;

/** A time of the address, which is local unless it has a zone, as the API takes it. */
export function instant(given: string | undefined): string | undefined {
  const at = given ? new Date(given) : undefined;
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

function parameters(conditions: Conditions): URLSearchParams {
  const query = new URLSearchParams({
    limit: String(LIMIT),
    type: conditions.types.join(','),
  });
  const given = {
    filter: conditions.filter,
    from: instant(conditions.from),
    to: instant(conditions.to),
    object_id: conditions.object,
    actor_id: conditions.actor,
  };
  for (const [name, value] of Object.entries(given))
    if (value) query.set(name, value);
  return query;
}

/** One page of a search, the newest events first. */
export async function keptPage(
  conditions: Conditions,
  cursor: string | undefined,
  signal: AbortSignal,
): Promise<KeptPage> {
  const query = parameters(conditions);
  if (cursor) query.set('cursor', cursor);
  const page = await call('GET', `/events?${query}`, undefined, signal);
  const entries =
    isObject(page) && Array.isArray(page.events)
      ? page.events.filter(isObject)
      : [];
  const uri = isObject(page) ? page.next_page_uri : null;
  const next =
    typeof uri === 'string'
      ? (new URL(uri, location.origin).searchParams.get('cursor') ?? undefined)
      : undefined;
  const searched = isObject(page) ? page.searched : undefined;
  return {
    events: entries.map(keptEvent),
    next,
    searched: isObject(searched)
      ? (searched as unknown as Searched)
      : undefined,
  };
}

/** All pages of a search. What is read stays as it is: events do not change. */
export function keptQuery(conditions: Conditions) {
  return infiniteQueryOptions({
    queryKey: ['events', 'kept', parameters(conditions).toString()],
    staleTime: Infinity,
    // A page that is opened again begins with the newest.
    gcTime: 0,
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page: KeptPage) => page.next,
    queryFn: ({ pageParam, signal }) => keptPage(conditions, pageParam, signal),
  });
}
