import { keepPreviousData, queryOptions } from '@tanstack/react-query';
import { api, body } from '@/api/client';
import type { paths } from '../../generated/api';

type TopParameters = NonNullable<
  paths['/statistics/top']['get']['parameters']['query']
>;

export type Subject = 'account' | 'endpoint' | 'destination' | 'agent' | 'node';

/** Ranges of time that a person chooses from, with their length in seconds. */
export const RANGES = [
  { value: '1h', label: 'Hour', seconds: 3_600 },
  { value: '6h', label: '6 hours', seconds: 21_600 },
  { value: '1d', label: 'Day', seconds: 86_400 },
  { value: '7d', label: 'Week', seconds: 604_800 },
  { value: '30d', label: 'Month', seconds: 2_592_000 },
] as const;

export type Range = (typeof RANGES)[number]['value'];

export const rangeOf = (value: string | undefined): (typeof RANGES)[number] =>
  RANGES.find((range) => range.value === value) ?? RANGES[0];

/** A step is written ten seconds after its start at the latest. */
const EVERY = 10_000;

const since = (seconds: number): string =>
  new Date(Date.now() - seconds * 1000).toISOString();

/** The statistics of a subject up to now, renewed with every step. */
export function statisticsQuery(
  subject: Subject,
  id: string | undefined,
  range: Range,
) {
  const { seconds } = rangeOf(range);
  return queryOptions({
    queryKey: ['statistics', subject, id, range],
    queryFn: async ({ signal }) =>
      body(
        await api.GET('/statistics', {
          params: {
            query: { subject, ...(id ? { id } : {}), from: since(seconds) },
          },
          signal,
        }),
      ),
    refetchInterval: EVERY,
    placeholderData: keepPreviousData,
  });
}

/** The subjects with the most of something, up to now. */
export function topQuery(
  subject: NonNullable<TopParameters['subject']>,
  seconds: number,
  order: NonNullable<TopParameters['order']>,
  limit: number,
) {
  return queryOptions({
    queryKey: ['statistics', 'top', subject, seconds, order, limit],
    queryFn: async ({ signal }) =>
      body(
        await api.GET('/statistics/top', {
          params: {
            query: {
              subject,
              order,
              limit,
              from: since(seconds),
            },
          },
          signal,
        }),
      ),
    refetchInterval: EVERY,
    placeholderData: keepPreviousData,
  });
}
