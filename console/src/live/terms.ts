import { queryOptions } from '@tanstack/react-query';
import { call } from '@/api/http';
import { isLikeToken, TOKEN_REFUSED } from '@/api/token';
import { type Conditions, type EventSearch, instant } from './kept';

/** A part of a search, as the server understands it. Places are in bytes. */
export interface Term {
  start: number;
  end: number;
  text: string;
  facet: string;
  label: string;
  is_negated: boolean;
}

export interface Completion {
  text: string;
  label: string;
}

/** What the words of a search mean. */
export interface Terms {
  /** The words. */
  q: string;
  terms: Term[];
  filter: string | null;
  from: string | null;
  to: string | null;
  object_id: string | null;
  actor_id: string | null;
  error: { message: string; start: number; end: number } | null;
  completions: Completion[];
}

const NO_WORDS: Terms = {
  q: '',
  terms: [],
  filter: null,
  from: null,
  to: null,
  object_id: null,
  actor_id: null,
  error: null,
  completions: [],
};

/** What words mean to the server: the one place that knows. Times such as `last 24h` count from this question. */
export function termsQuery(q: string) {
  return queryOptions({
    queryKey: ['events', 'terms', q],
    staleTime: 60_000,
    gcTime: 60_000,
    queryFn: async ({ signal }): Promise<Terms> => {
      if (q.trim() === '') return NO_WORDS;
      if (isLikeToken(q))
        return {
          ...NO_WORDS,
          q,
          error: { message: TOKEN_REFUSED, start: 0, end: 0 },
        };
      const query = new URLSearchParams({
        q,
        utc_offset: String(-new Date().getTimezoneOffset()),
      });
      const found = await call(
        'GET',
        `/events/terms?${query}`,
        undefined,
        signal,
      );
      return { ...(found as unknown as Terms), q };
    },
  });
}

/** A text before, within and behind a range of its bytes. */
export function cut(
  text: string,
  { start, end }: { start: number; end: number },
): [string, string, string] {
  const bytes = new TextEncoder().encode(text);
  const part = (from: number, to?: number) =>
    new TextDecoder().decode(bytes.subarray(from, to));
  return [part(0, start), part(start, end), part(end)];
}

/** The words without one of their terms. */
export function without(
  q: string,
  term: { start: number; end: number },
): string {
  const [before, , after] = cut(q, term);
  return `${before.trimEnd()} ${after.trimStart()}`.trim();
}

/** The words narrowed by another one, which takes the place of those of its facet: two of a facet would widen the search. */
export function narrowed(
  { q, terms }: Terms,
  facet: string,
  word: string,
): string {
  const rest = terms
    .filter((term) => term.facet === facet && !term.is_negated)
    .toSorted((a, b) => b.start - a.start)
    .reduce(without, q);
  return `${rest} ${word}`.trim();
}

/** Two conditions in CEL as one. */
export const both = (one: string | undefined, other: string | null) =>
  one && other ? `(${one}) && (${other})` : (one ?? other ?? undefined);

/** The condition in CEL that a search stands for. */
export const celOf = (search: EventSearch, terms: Terms): string =>
  both(search.filter, terms.filter) ?? '';

/** Those of two times that are there, in their order. */
const times = (one: string | null, other: string | undefined): string[] =>
  [one ?? undefined, other].flatMap((given) => instant(given) ?? []).toSorted();

/** What the API is asked for. */
export function conditionsOf(
  search: EventSearch,
  terms: Terms,
  all: string[],
): Conditions {
  return {
    types: search.type ? search.type.split(',') : all,
    filter: celOf(search, terms) || undefined,
    from: times(terms.from, search.from).at(-1),
    to: times(terms.to, search.to)[0],
    object: terms.object_id ?? search.object,
    actor: terms.actor_id ?? search.actor,
  };
}
