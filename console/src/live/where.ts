import { collectionOf } from '@/resources/names';
import type { EventSearch } from './kept';

type Search = Record<string, unknown>;

/** A part of an address's search: the router makes numbers of `q=502` and the like. */
export const word = (value: unknown): string | undefined =>
  typeof value === 'number' || typeof value === 'boolean'
    ? String(value)
    : typeof value === 'string' && value !== ''
      ? value
      : undefined;
const pad = (n: number) => String(n).padStart(2, '0');

/** A time of the API's queries as the fields of a search have it: local, without a zone. */
function local(value: unknown): string | undefined {
  const given = word(value);
  if (!given || !/(Z|[+-]\d\d:?\d\d)$/i.test(given)) return given;
  const at = new Date(given.replace(' ', '+'));
  if (Number.isNaN(at.getTime())) return undefined;
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}T${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

/** A search for events, by the names that the console's pages have for its parts or by those of `GET /events`. */
export function searchOf(search: Search): EventSearch {
  return {
    q: word(search.q),
    filter: word(search.filter),
    type: word(search.type),
    from: local(search.from),
    to: local(search.to),
    object: word(search.object) ?? word(search.object_id),
    actor: word(search.actor) ?? word(search.actor_id),
  };
}

const TRAFFIC = /^(traffic|http_request_complete|tcp_connection_closed)/;
/** The page that has events of a type. */
export const logOf = (type: string): '/traffic' | '/audit' =>
  TRAFFIC.test(type) ? '/traffic' : '/audit';

/** The beginnings of fields that events of traffic alone have. */
const FIELDS =
  /\bev\.(http|conn|backend|tls|traffic_policy|compression|ip_policy|oauth|basic_auth|circuit_breaker|webhook_verification)\b/;

/** The page that has what a search for events asks for, if one of the two has all of it. */
export function pageOf({
  type,
  filter,
  object,
  actor,
}: EventSearch): '/traffic' | '/audit' | undefined {
  const types = type?.split(',') ?? [];
  if (types.length > 0) {
    const traffic = types.filter((one) => TRAFFIC.test(one)).length;
    return traffic === types.length
      ? '/traffic'
      : traffic === 0
        ? '/audit'
        : undefined;
  }
  if (actor) return '/audit';
  if (object)
    return collectionOf(object) === 'endpoints' ? '/traffic' : '/audit';
  return filter && FIELDS.test(filter) ? '/traffic' : undefined;
}

/** The search as the page takes it: the name of a whole log is no type there. */
export function forPage(search: EventSearch): EventSearch {
  return {
    ...search,
    type:
      search.type === 'traffic' || search.type === 'audit'
        ? undefined
        : search.type,
  };
}
