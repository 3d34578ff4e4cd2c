import { isObject, type JsonObject, refId, text } from '@/api/json';

/** What is behind an endpoint, in words. */
export function servedBy(object: JsonObject): string {
  if (refId(object.tunnel_session)) return 'An agent';
  const upstreams = Array.isArray(object.upstreams) ? object.upstreams : [];
  const urls = upstreams.flatMap((one) => (isObject(one) ? text(one.url) : []));
  return text(object.upstream_url) || urls.join(', ') || 'Its policy';
}
