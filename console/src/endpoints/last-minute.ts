import { useQuery } from '@tanstack/react-query';
import { type JsonObject, refId } from '@/api/json';
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

/** What was counted of all endpoints in the last minute. */
export const minuteQuery = topQuery('endpoint', SECONDS, 'requests', MOST);

type Counted = Awaited<
  ReturnType<NonNullable<(typeof minuteQuery)['queryFn']>>
>;

/** What was counted of one endpoint; `undefined` before there is an answer. */
export const minuteOf = (
  counted: Counted | undefined,
  id: string,
): Minute | undefined =>
  counted && {
    traffic: counted.top.find((one) => one.id === id)?.traffic ?? undefined,
    seconds: (Date.parse(counted.to) - Date.parse(counted.from)) / 1000,
    isCertain: counted.count <= MOST,
  };

/** What was counted of an endpoint in the last minute; `undefined` before the answer, and `null` without one. */
export function useLastMinute(id: string): Minute | null | undefined {
  const { data, error } = useQuery(minuteQuery);
  return minuteOf(data, id) ?? (error ? null : undefined);
}

/** The share of requests that failed: responses 5xx, and requests without a response. */
export const failedShare = (traffic: Minute['traffic']): number | undefined =>
  traffic?.requests
    ? (traffic.status_5xx + traffic.aborted) / traffic.requests
    : undefined;

/** Requests a second, or connections of an endpoint that has no requests. */
export function rankOfRate(minute: Minute | undefined): number | undefined {
  if (!minute) return undefined;
  const { traffic, seconds, isCertain } = minute;
  if (!traffic) return isCertain ? 0 : undefined;
  return (traffic.requests || traffic.connections) / seconds;
}

export type Online = 'offline' | 'fails' | 'answers' | 'online';

/** Whether an agent serves an endpoint; of others, what their traffic of the last minute says. */
export function onlineOf(
  object: JsonObject,
  minute: Minute | null | undefined,
): Online | undefined {
  if (refId(object.tunnel_session)) return 'online';
  if (object.type === 'ephemeral') return 'offline';
  const share = failedShare(minute?.traffic);
  if (share === undefined) return undefined;
  return share === 1 ? 'fails' : 'answers';
}

const ONLINE: Online[] = ['offline', 'fails', 'answers', 'online'];

/** The order that begins with what needs attention. */
export function rankOfOnline(
  object: JsonObject,
  minute: Minute | undefined,
): number | undefined {
  const online = onlineOf(object, minute);
  return online && ONLINE.indexOf(online);
}
