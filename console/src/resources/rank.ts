import { useQueries, useQuery } from '@tanstack/react-query';
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
  | { field: string };

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

/** Objects in the order of a column. Those that are equal stay as they were. */
export function useRanked(
  objects: JsonObject[] | undefined,
  rank: Rank | undefined,
  isDown: boolean,
): JsonObject[] | undefined {
  const { resources } = useModel();
  const isOfMinute = rank !== undefined && 'ofMinute' in rank;
  const minute = useQuery({ ...minuteQuery, enabled: isOfMinute }).data;
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
  }, [objects, rank, isDown, minute, names]);
}
