import { useQuery } from '@tanstack/react-query';
import { text } from '@/api/json';
import { show } from '@/charts/units';
import { Empty, Failure, Loading } from '@/ui/states';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import type { KeptEvent, LiveEvent } from './entry';
import { at } from './facts';
import { keptPage } from './kept';

const AGAIN_MS = 2000;
/** The most pages that are looked through. */
const PAGES = 30;

/** The connection that a request came on, from the event of its end. */
export function Connection({
  event: { event_id, object },
}: {
  event: LiveEvent;
}) {
  const start = text(at(object, 'conn.start_ts'));
  const client = text(at(object, 'conn.client_ip'));
  const found = useQuery<KeptEvent | null>({
    queryKey: ['events', 'connection', event_id],
    refetchInterval: ({ state }) => (state.data ? false : AGAIN_MS),
    queryFn: async ({ signal }) => {
      // A connection may carry requests to several endpoints.
      const conditions = {
        types: ['tcp_connection_closed.v0'],
        filter: `ev.conn.start_ts == ${JSON.stringify(start)} && ev.conn.client_ip == ${JSON.stringify(client)}`,
        from: start,
      };
      let cursor: string | undefined;
      for (let n = 0; n < PAGES; n += 1) {
        const page = await keptPage(conditions, cursor, signal);
        if (page.events[0]) return page.events[0];
        if (!page.next) break;
        cursor = page.next;
      }
      return null;
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
        text="It is here when it is closed."
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
