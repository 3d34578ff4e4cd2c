import { useNavigate, useSearch } from '@/routing/view';
import { useCallback, useMemo } from 'react';
import { show } from '@/charts/units';
import { type Json, text } from '@/api/json';
import { RowTime } from '@/ui/time';
import type { KeptEvent, LiveEvent } from './entry';
import { at, isRequest, isTransport, reasonWords, wordOf } from './facts';
import type { EventSearch } from './kept';
import { InRow } from './narrow';
import { Timeline } from './timeline';
import { searchOf } from './where';
import css from './live.module.css';

const ALL = ['http_request_complete.v0', 'tcp_connection_closed.v0'];
const HEADS = [
  'Time',
  'Method',
  'Host',
  'Path',
  'Status',
  'Duration',
  'Response',
];

const count = (value: Json | undefined, unit: 'ms' | 'bytes') =>
  typeof value === 'number' ? show(value, unit) : '';

function Row({ event }: { event: LiveEvent }) {
  const { object, event_timestamp } = event;
  const isHttp = isRequest(event);
  const status = text(at(object, 'http.response.status_code'));
  const reason = text(at(object, 'culvert.reason'));
  const query = text(at(object, 'http.request.url.query'));
  const host = text(at(object, 'conn.server_name'));
  const method = text(at(object, 'http.request.method'));
  const client = text(at(object, 'conn.client_ip'));
  const path =
    text(at(object, 'http.request.url.path')) + (query && `?${query}`);
  const why = reasonWords(reason);
  return (
    <>
      <RowTime value={event_timestamp} />
      <span className={css.method}>
        {isHttp ? (
          <InRow facet="method" word={`method:${method}`}>
            {method}
          </InRow>
        ) : (
          'tcp'
        )}
      </span>
      <span>
        <InRow facet="host" word={wordOf('host', host)}>
          {host}
        </InRow>
      </span>
      <span title={`${isHttp ? path : `from ${client}`}${why && `: ${why}`}`}>
        {isHttp ? (
          path
        ) : (
          <>
            from{' '}
            <InRow facet="ip" word={client}>
              {client}
            </InRow>
          </>
        )}
        {why ? (
          <>
            {' '}
            <span className={css.reason}>{why}</span>
          </>
        ) : null}
      </span>
      <span
        className={css.code}
        data-class={isHttp ? Math.floor(Number(status || 0) / 100) : 'none'}
      >
        {isHttp && status ? (
          <InRow facet="status" word={status}>
            {status}
          </InRow>
        ) : isHttp ? (
          'cut'
        ) : (
          ''
        )}
      </span>
      <span className={css.size}>
        {count(at(object, 'culvert.duration_ms'), 'ms')}
      </span>
      <span className={css.size}>
        {count(
          at(object, isHttp ? 'http.response.body_length' : 'conn.bytes_out'),
          'bytes',
        )}
      </span>
    </>
  );
}

const row = (event: LiveEvent) => <Row event={event} />;

const COLUMNS = [
  'http.request.method',
  'http.request.url.raw',
  'conn.server_name',
  'http.response.status_code',
  'culvert.duration_ms',
  'culvert.first_byte_ms',
  'culvert.connect_ms',
  'culvert.reason',
  'culvert.upstream',
  'conn.client_ip',
  'http.request.body_length',
  'http.response.body_length',
  'http.request.user_agent',
  'culvert.trace_id',
];
const EXPORTED = [
  ...(['event_timestamp', 'event_type', 'event_id'] as const).map((name) => ({
    name,
    of: (event: KeptEvent) => event[name],
  })),
  { name: 'endpoint_id', of: (event: KeptEvent) => event.endpoint },
  ...COLUMNS.map((name) => ({
    name,
    of: ({ object }: KeptEvent) => at(object, name),
  })),
];

const EMPTY = {
  title: 'Nothing has passed yet',
  text: 'A request to any endpoint appears here about a second after its response.',
  command: 'culvert events tail --type http_request_complete.v0',
};

/** Requests and connections. */
export default function TrafficPage() {
  const search = useSearch(searchOf);
  const navigate = useNavigate();
  const onSearch = useCallback(
    (next: EventSearch) => void navigate({ to: '/traffic', search: next }),
    [navigate],
  );
  // A request is one row: its connection is in its detail, and in a search for connections.
  const shows = useMemo(
    () =>
      search.type ? () => true : (event: LiveEvent) => !isTransport(event),
    [search.type],
  );
  return (
    <Timeline
      title="Traffic"
      text="Requests and connections of all nodes, the newest first. New ones appear as they end."
      placeholder="502 shop.example.com /checkout >500ms last 24h"
      all={ALL}
      search={search}
      onSearch={onSearch}
      shows={shows}
      heads={HEADS}
      row={row}
      columns={EXPORTED}
      empty={EMPTY}
    />
  );
}
