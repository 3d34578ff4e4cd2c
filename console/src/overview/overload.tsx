import { useQuery } from '@tanstack/react-query';
import { Link } from '@/routing/link';
import { LostNodes } from '@/nodes/lost-nodes';
import { nodesQuery } from '@/nodes/queries';
import { useSession } from '@/session/session';
import { Tag } from '@/ui/page';
import { LEVELS } from '@/nodes/levels';
import css from './overview.module.css';

/** The nodes that do not report any more. Admins only. */
export function LostNodesOfAll() {
  const isAdmin = useSession()?.role === 'admin';
  const { data } = useQuery({ ...nodesQuery, enabled: isAdmin });
  return data ? <LostNodes nodes={data.nodes} /> : null;
}

/** The nodes that are online, and the highest overload level. Admins only. */
export function Nodes() {
  const isAdmin = useSession()?.role === 'admin';
  const { data } = useQuery({ ...nodesQuery, enabled: isAdmin });
  if (!isAdmin || !data) return null;
  const online = data.nodes.filter((node) => node.is_online);
  const level = Math.max(0, ...online.map((node) => node.overload_level));
  return (
    <Link to="/nodes" className={css.count}>
      <b>{online.length}</b>
      <span>
        {online.length === 1 ? 'Node' : 'Nodes'}{' '}
        <Tag tone={LEVELS[level]?.tone ?? 'bad'}>
          {LEVELS[level]?.label ?? String(level)}
        </Tag>
      </span>
    </Link>
  );
}
