import { type Json, type JsonObject, isObject, text } from '@/api/json';
import type { LiveEvent } from './entry';

/** A field of an event by its path, such as `http.response.status_code`. */
export function at(object: JsonObject, path: string): Json | undefined {
  return path
    .split('.')
    .reduce<Json | undefined>(
      (now, key) => (isObject(now) ? now[key] : undefined),
      object,
    );
}

export const isRequest = ({ event_type }: LiveEvent): boolean =>
  event_type.startsWith('http_request_complete');

/** Whether an event is the end of a connection that carried requests: they have events of their own, which say more. */
export const isTransport = ({ event_type, object }: LiveEvent): boolean =>
  event_type.startsWith('tcp_connection_closed') &&
  !text(at(object, 'culvert.reason')) &&
  !text(at(object, 'culvert.upstream'));

/** The name of a reason in words: `upstream_connect_failed` becomes "upstream connect failed". */
export const reasonWords = (reason: string): string =>
  reason.replaceAll('_', ' ');

/** What would mean something else in a search: strangers write hosts and paths. */
const NO_WORD = /["\s]|==|!=|&&|\|\||\bev\./;

/** A host or a path as a word of a search. */
export function wordOf(facet: 'host' | 'path', value: string): string {
  if (NO_WORD.test(value)) return `${facet}:"${value.split('"')[0]}"`;
  return facet === 'path' && value.startsWith('/')
    ? value
    : `${facet}:${value}`;
}
