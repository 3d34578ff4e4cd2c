import type { Node } from '../../generated/api';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';

/** Says loudly which nodes do not report any more. */
export function LostNodes({ nodes }: { nodes: Node[] }) {
  const lost = nodes.filter((node) => !node.is_online);
  if (lost.length === 0) return null;
  return (
    <div className={ui.failure} role="alert">
      <h2>{lost.length === 1 ? 'A node is offline' : 'Nodes are offline'}</h2>
      <p>
        {lost.length} of {nodes.length} nodes {lost.length === 1 ? 'is' : 'are'}{' '}
        offline: {lost.map(({ name }) => name).join(', ')}.
      </p>
      <p>
        Requests to {lost.length === 1 ? 'its' : 'their'} addresses fail. Agents
        connect to another node. Last report:{' '}
        {lost.map(({ name, last_seen_at: seen }, index) => (
          <span key={name}>
            {index > 0 ? ', ' : ''}
            {lost.length > 1 ? `${name} ` : ''}
            <Time value={seen} relative />
          </span>
        ))}
        .
      </p>
    </div>
  );
}
