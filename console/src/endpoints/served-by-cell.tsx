import { Link } from '@/routing/link';
import { type JsonObject, refId } from '@/api/json';
import { Breakable } from '@/ui/breakable';
import { servedBy } from './served-by';

export default function ServedByCell({ object }: { object: JsonObject }) {
  const agent = refId(object.tunnel_session);
  return agent ? (
    <Link
      to="/$collection/$id"
      params={{ collection: 'tunnel_sessions', id: agent }}
    >
      {servedBy(object)}
    </Link>
  ) : (
    <Breakable text={servedBy(object)} />
  );
}
