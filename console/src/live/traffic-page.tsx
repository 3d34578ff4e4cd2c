import { Button, Select } from '@mantine/core';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { type ReactNode, lazy, Suspense, useState } from 'react';
import { type Json, isObject, text } from '@/api/json';
import { RowTime } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import { KeptPage } from './kept-page';
import { LivePage } from './live-page';
import type { LiveEvent } from './entry';
import { useTail } from './use-tail';
import { Views } from './views';
import css from './live.module.css';

const CodeEditor = lazy(() => import('@/ui/code-editor'));

const KINDS = [
  { value: 'http_request_complete.v0', label: 'HTTP requests' },
  { value: 'tcp_connection_closed.v0', label: 'Connections' },
];
const HEADS = ['Time', 'Method', 'Host', 'Path', 'Status', 'Response'];
const ALL = KINDS.map(({ value }) => value);

function at(value: Json | undefined, ...path: string[]): Json | undefined {
  return path.reduce<Json | undefined>(
    (now, key) => (isObject(now) ? now[key] : undefined),
    value,
  );
}

function size(bytes: Json | undefined): string {
  const n = Number(bytes ?? 0);
  if (n < 1000) return `${n} B`;
  return n < 1_000_000
    ? `${(n / 1000).toFixed(1)} kB`
    : `${(n / 1_000_000).toFixed(1)} MB`;
}

function row({ event_type, event_timestamp, object }: LiveEvent) {
  const http = event_type === 'http_request_complete.v0';
  const status = at(object, 'http', 'response', 'status_code');
  const reason = text(at(object, 'culvert', 'reason')).replaceAll('_', ' ');
  const query = text(at(object, 'http', 'request', 'url', 'query'));
  const host = text(at(object, 'conn', 'server_name'));
  const what = http
    ? text(at(object, 'http', 'request', 'url', 'path')) +
      (query && `?${query}`)
    : `from ${text(at(object, 'conn', 'client_ip'))}${reason && `: ${reason}`}`;
  return (
    <>
      <RowTime value={event_timestamp} />
      <span className={css.method}>
        {http ? text(at(object, 'http', 'request', 'method')) : 'tcp'}
      </span>
      <span title={host}>{host}</span>
      <span title={what}>{what}</span>
      <span
        className={css.code}
        data-class={http ? Math.floor(Number(status ?? 0) / 100) : 'none'}
        title={reason}
      >
        {http ? text(status) || 'cut' : ''}
      </span>
      <span className={css.size}>
        {size(
          http
            ? at(object, 'http', 'response', 'body_length')
            : at(object, 'conn', 'bytes_out'),
        )}
      </span>
    </>
  );
}

/** The requests that pass through, and those that are kept. */
export default function TrafficPage() {
  const search = useSearch({ from: '/traffic' });
  const navigate = useNavigate();
  const views = (
    <Views
      view={search.view}
      onView={(view) => void navigate({ to: '/traffic', search: { view } })}
    />
  );
  return search.view === 'kept' ? (
    <KeptPage
      title="Traffic"
      text="Requests and connections that are kept, of all nodes."
      views={views}
      kinds={KINDS}
      all={ALL}
      object="Endpoint ID"
      empty={{
        title: 'No request is kept yet',
        text: 'A request to any endpoint is here about a second after its response.',
      }}
      row={row}
      heads={HEADS}
      search={search}
      onSearch={(next) =>
        void navigate({ to: '/traffic', search: { ...next, view: 'kept' } })
      }
    />
  ) : (
    <LiveTraffic views={views} />
  );
}

/** The requests that pass through now. */
function LiveTraffic({ views }: { views: ReactNode }) {
  const search = useSearch({ from: '/traffic' });
  const navigate = useNavigate();
  const [draft, setDraft] = useState(search.filter ?? '');
  const tail = useTail({
    types: search.type ? [search.type] : ALL,
    filter: search.filter,
    resumes: true,
  });
  const go = (filter: string, type = search.type) =>
    void navigate({
      to: '/traffic',
      search: { filter: filter.trim() || undefined, type },
    });
  const tools = (
    <form
      className={ui.toolbar}
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        go(draft);
      }}
    >
      <div className={ui.grow}>
        <span className={ui.label}>Filter</span>
        <Suspense fallback={null}>
          <CodeEditor
            label="Filter, a condition in CEL on ev"
            language="cel"
            value={draft}
            onChange={setDraft}
          />
        </Suspense>
      </div>
      <Select
        label="Kind"
        data={KINDS}
        placeholder="All"
        clearable
        value={search.type ?? null}
        onChange={(type) => go(draft, type ?? undefined)}
      />
      <Button type="submit" variant="default">
        Apply
      </Button>
      {search.filter ? (
        <Button
          variant="subtle"
          onClick={() => {
            setDraft('');
            go('');
          }}
        >
          Clear the filter
        </Button>
      ) : null}
    </form>
  );
  return (
    <LivePage
      title="Traffic"
      text="Requests and connections as they end, on all nodes."
      tail={tail}
      views={views}
      tools={tools}
      row={row}
      heads={HEADS}
      empty={{
        title: 'Nothing has passed since you opened this page',
        text: 'A request to any endpoint appears here within two seconds.',
        command: 'culvert events tail --type http_request_complete.v0',
      }}
    />
  );
}
