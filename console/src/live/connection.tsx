import { useQuery } from '@tanstack/react-query';
import { text } from '@/api/json';
import { show } from '@/charts/units';
import { Empty, Failure, Loading } from '@/ui/states';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import type { KeptEvent, LiveEvent } from './entry';
import { at } from './facts';
import { keptPage } from './kept';

/** The connection that a request came on, from the event of its end. */
export function Connection({
  event: { event_id, object, endpoint },
}: {
  event: LiveEvent & Partial<KeptEvent>;
}) {
  const start = text(at(object, 'conn.start_ts'));
  const client = text(at(object, 'conn.client_ip'));
  const found = useQuery({
    queryKey: ['events', 'connection', event_id],
    queryFn: async ({ signal }) => {
      const page = await keptPage(
        {
          types: ['tcp_connection_closed.v0'],
          filter: `ev.conn.start_ts == timestamp(${JSON.stringify(start)}) && ev.conn.client_ip == ${JSON.stringify(client)}`,
          from: start,
          object: endpoint,
        },
        undefined,
        signal,
      );
      return page.events[0] ?? null;
    },
  });
  if (found.isPending) return <Loading />;
  if (found.error)
    return <Failure error={found.error} retry={() => void found.refetch()} />;
  const { data } = found;
  if (!data)
    return (
      <Empty
        title="The connection is open, or not kept"
        text="Its event comes when it is closed."
      />
    );
  const rows = [
    ['Opened', <Time key="opened" value={start} />],
    [
      'Closed',
      <Time key="closed" value={text(at(data.object, 'conn.end_ts'))} />,
    ],
    ['Open for', show(Number(at(data.object, 'culvert.duration_ms')), 'ms')],
    [
      'From the client',
      show(Number(at(data.object, 'conn.bytes_in')), 'bytes'),
    ],
    ['To the client', show(Number(at(data.object, 'conn.bytes_out')), 'bytes')],
    ['TLS', text(at(object, 'tls.version')) || 'none'],
    ['Event', <code key="event">{data.event_id}</code>],
  ] as const;
  return (
    <dl className={ui.pairs} aria-label="Connection">
      {rows.map(([name, value]) => [
        <dt key={`${name} name`}>{name}</dt>,
        <dd key={name}>{value}</dd>,
      ])}
    </dl>
  );
}
