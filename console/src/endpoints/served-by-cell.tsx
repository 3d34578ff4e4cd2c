import { Link } from '@/routing/link';
import { Breakable } from '@/ui/breakable';
import { isObject, type JsonObject, refId, text } from '@/api/json';

export default function ServedByCell({ object }: { object: JsonObject }) {
  const agent = refId(object.tunnel_session);
  if (agent)
    return (
      <Link
        to="/$collection/$id"
        params={{ collection: 'tunnel_sessions', id: agent }}
      >
        An agent
      </Link>
    );
  const upstreams = Array.isArray(object.upstreams) ? object.upstreams : [];
  const urls = upstreams.flatMap((one) => (isObject(one) ? text(one.url) : []));
  const shown = text(object.upstream_url) || urls.join(', ');
  return <Breakable text={shown || 'Its policy'} />;
}
