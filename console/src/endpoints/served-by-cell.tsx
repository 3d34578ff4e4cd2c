import { Link } from '@/routing/link';
import { Breakable } from '@/ui/breakable';
import { type JsonObject, refId, text } from '@/api/json';

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
  return <Breakable text={text(object.upstream_url) || 'Its policy'} />;
}
