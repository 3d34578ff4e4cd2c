import {
  keepPreviousData,
  type QueryClient,
  useQueries,
  useQuery,
} from '@tanstack/react-query';
import { useCallback, useMemo } from 'react';
import { useModel } from '@/api/document';
import { type Json, type JsonObject, refId, text } from '@/api/json';
import {
  failedShare,
  type Minute,
  minuteOf,
  minuteQuery,
  rankOfOnline,
  rankOfRate,
} from '@/endpoints/last-minute';
import { nameQuery } from './name-of-id';
import { collectionOf } from './names';

type Value = number | string | undefined;

/** What a column is sorted by that the server does not sort by. Objects without a value come last in both directions. */
export type Rank =
  | { of: (object: JsonObject) => Value }
  | { ofMinute: (object: JsonObject, minute: Minute | undefined) => Value }
  | { field: string }
  | {
      /** What the server is asked about each object; nothing if the person may not know. */
      ask: (object: JsonObject, client: QueryClient) => Promise<Value>;
    };

/** By what was counted in the last minute. */
export const RATE: Rank = { ofMinute: (_, minute) => rankOfRate(minute) };
export const ERRORS: Rank = {
  ofMinute: (_, minute) => failedShare(minute?.traffic),
};
export const ONLINE: Rank = { ofMinute: rankOfOnline };

const NONE: string[] = [];
const collator = new Intl.Collator(undefined, { numeric: true });

const idsIn = (value: Json | undefined): string[] => {
  if (Array.isArray(value)) return value.flatMap(idsIn);
  const id = refId(value) ?? text(value);
  return collectionOf(id) ? [id] : NONE;
};

function compare(one: Value, other: Value): number {
  return typeof one === 'number' && typeof other === 'number'
    ? one - other
    : collator.compare(String(one), String(other));
}

/** Objects that the server is asked about one by one, at most. */
const ASKED_MAX = 500;
const ASK_EVERY_MS = 15_000;

/** How many objects a column sorts at most. */
export const sortedMax = (rank: Rank | undefined): number =>
  rank && 'ask' in rank ? ASKED_MAX : Infinity;

/** What the server says of each object, by its ID; `undefined` until it has of all of them. */
function useAsked(
  objects: JsonObject[] | undefined,
  rank: Rank | undefined,
): Map<string, Value> | undefined {
  const ask = rank && 'ask' in rank ? rank.ask : undefined;
  const ids = objects?.map(({ id }) => text(id));
  const answers = useQuery({
    queryKey: ['ranks', ids],
    queryFn: async ({ client }) =>
      new Map(
        await Promise.all(
          (ask ? (objects ?? []) : []).map(
            async (object): Promise<[string, Value]> => [
              text(object.id),
              await ask?.(object, client).catch(() => undefined),
            ],
          ),
        ),
      ),
    enabled: ask !== undefined && objects !== undefined,
    placeholderData: keepPreviousData,
    refetchInterval: ASK_EVERY_MS,
  });
  return answers.data;
}

/** Objects in the order of a column. Those that are equal stay as they were. */
export function useRanked(
  objects: JsonObject[] | undefined,
  rank: Rank | undefined,
  isDown: boolean,
): JsonObject[] | undefined {
  const { resources } = useModel();
  const isOfMinute = rank !== undefined && 'ofMinute' in rank;
  const minute = useQuery({ ...minuteQuery, enabled: isOfMinute }).data;
  const asked = useAsked(objects, rank);
  const field = rank && 'field' in rank ? rank.field : undefined;
  const ids = useMemo(
    () =>
      field && objects
        ? [...new Set(objects.flatMap((object) => idsIn(object[field])))]
        : NONE,
    [objects, field],
  );
  const names = useQueries({
    queries: ids.map((id) =>
      nameQuery(resources.get(collectionOf(id) ?? ''), id),
    ),
    combine: useCallback(
      (found: { data: string | undefined }[]) =>
        new Map(ids.map((id, index) => [id, found[index]?.data ?? id])),
      [ids],
    ),
  });
  return useMemo(() => {
    if (!objects || !rank) return objects;
    const valueOf = (object: JsonObject): Value => {
      if ('of' in rank) return rank.of(object);
      if ('ask' in rank) return asked?.get(text(object.id));
      if ('ofMinute' in rank)
        return rank.ofMinute(object, minuteOf(minute, text(object.id)));
      return (
        idsIn(object[rank.field])
          .map((id) => names.get(id) ?? id)
          .join(', ') || undefined
      );
    };
    const valued = objects.map((object) => ({ object, by: valueOf(object) }));
    const isThere = ({ by }: { by: Value }) => by !== undefined;
    return [
      ...valued
        .filter(isThere)
        .toSorted(
          (one, other) => (isDown ? -1 : 1) * compare(one.by, other.by),
        ),
      ...valued.filter((one) => !isThere(one)),
    ].map(({ object }) => object);
  }, [objects, rank, isDown, minute, asked, names]);
}
