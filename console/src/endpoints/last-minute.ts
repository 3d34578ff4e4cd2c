import { useQuery } from '@tanstack/react-query';
import { topQuery } from '@/charts/queries';
import type { Statistics } from '../../generated/api';

const SECONDS = 60;
/** One question for all rows. */
const MOST = 1000;

export interface Minute {
  traffic: NonNullable<Statistics['total']['traffic']> | undefined;
  /** How long it was. */
  seconds: number;
  /** Whether nothing counted means that there was nothing: the quietest of very many are left out. */
  isCertain: boolean;
}

/** What was counted of an endpoint in the last minute; `undefined` before the answer, and `null` without one. */
export function useLastMinute(id: string): Minute | null | undefined {
  const { data, error } = useQuery(
    topQuery('endpoint', SECONDS, 'requests', MOST),
  );
  if (!data) return error ? null : undefined;
  return {
    traffic: data.top.find((one) => one.id === id)?.traffic ?? undefined,
    seconds: (Date.parse(data.to) - Date.parse(data.from)) / 1000,
    isCertain: data.count <= MOST,
  };
}

/** The share of requests that failed: responses 5xx, and requests without a response. */
export const failedShare = (traffic: Minute['traffic']): number | undefined =>
  traffic?.requests
    ? (traffic.status_5xx + traffic.aborted) / traffic.requests
    : undefined;
