import { queryOptions } from '@tanstack/react-query';
import { Link } from '@/routing/link';
import { text } from '@/api/json';
import { show } from '@/charts/units';
import type { KeptEvent } from '@/live/entry';
import { at, isTransport, reasonWords } from '@/live/facts';
import { keptPage } from '@/live/kept';
import { Tag, type Tone } from '@/ui/page';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';

const AGAIN_MS = 5000;
const SHOWN = 6;

/** The newest traffic of an endpoint. */
export function recentQuery(id: string, isWeb: boolean) {
  return queryOptions({
    queryKey: ['events', 'recent', id],
    refetchInterval: AGAIN_MS,
    retry: false,
    queryFn: async ({ signal }) => {
      const types = [
        isWeb ? 'http_request_complete.v0' : 'tcp_connection_closed.v0',
      ];
      const page = await keptPage({ types, object: id }, undefined, signal);
      return page.events.filter((event) => !isTransport(event)).slice(0, SHOWN);
    },
  });
}

const TONES: Record<string, Tone> = { 2: 'ok', 3: 'ok', 4: 'warn', 5: 'bad' };

/** Whether what is behind the endpoint answered last, and when that was. */
export function UpState({ last }: { last: KeptEvent | undefined }) {
  if (!last) return <Tag>No request yet</Tag>;
  const reason = text(at(last.object, 'culvert.reason'));
  const isDown = /^(upstream|agent)_/.test(reason);
  return (
    <>
      <Tag tone={isDown ? 'bad' : 'ok'}>{isDown ? 'Fails' : 'Answers'}</Tag>{' '}
      <span className={ui.dim}>
        {isDown ? `${reasonWords(reason)}, ` : ''}
        <Time value={last.event_timestamp} relative />
      </span>
    </>
  );
}

/** The newest requests or connections, each of which leads to its event. */
export function Recent({ events }: { events: KeptEvent[] }) {
  return (
    <ul className={ui.recent} aria-label="Newest traffic">
      {events.map(({ event_id, event_timestamp, object }) => {
        const status = text(at(object, 'http.response.status_code'));
        const method = text(at(object, 'http.request.method')).toUpperCase();
        const reason = text(at(object, 'culvert.reason'));
        return (
          <li key={event_id}>
            <Tag tone={TONES[status[0] ?? ''] ?? 'quiet'}>
              {status || (method ? 'cut' : 'tcp')}
            </Tag>
            <Link to="/events/$id" params={{ id: event_id }}>
              {method
                ? `${method} ${text(at(object, 'http.request.url.path'))}`
                : `from ${text(at(object, 'conn.client_ip'))}`}
            </Link>
            <span className={ui.dim}>
              {reason ? `${reasonWords(reason)}, ` : ''}
              {show(Number(at(object, 'culvert.duration_ms') ?? 0), 'ms')},{' '}
              <Time value={event_timestamp} relative />
            </span>
          </li>
        );
      })}
    </ul>
  );
}
