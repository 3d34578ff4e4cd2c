import { Select, TextInput } from '@mantine/core';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { useCallback, useMemo } from 'react';
import { useModel } from '@/api/document';
import { refId, text } from '@/api/json';
import { eventTitle } from '@/api/words';
import { nameOf } from '@/resources/names';
import { clock } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import { LivePage } from './live-page';
import type { LiveEvent } from './tail';
import { useTail } from './use-tail';

const TRAFFIC = new Set(['http_request_complete.v0', 'tcp_connection_closed.v0']);

function who({ principal }: LiveEvent): string {
  return text(principal?.subject) || (principal ? refId(principal) ?? text(principal.id) : 'the server');
}

function row(event: LiveEvent) {
  return (
    <>
      <span>{clock(event.event_timestamp)}</span>
      <span>{eventTitle(event.event_type)}</span>
      <span>{who(event)}</span>
      <span>{nameOf(event.object)}</span>
    </>
  );
}

/** Who changes what, now. What happened before is read with `culvert audit export`. */
export default function AuditPage() {
  const search = useSearch({ from: '/audit' });
  const navigate = useNavigate();
  const { eventTypes } = useModel();
  const types = useMemo(() => eventTypes.filter((type) => !TRAFFIC.has(type)), [eventTypes]);
  const tail = useTail({ types: search.type ? [search.type] : types });
  const wanted = search.filter?.toLowerCase();
  const matches = useCallback((event: LiveEvent) => !wanted || JSON.stringify(event).toLowerCase().includes(wanted), [wanted]);
  const go = (next: { filter?: string | undefined; type?: string | undefined }) => void navigate({ to: '/audit', search: next, replace: true });
  const tools = (
    <div className={ui.toolbar} role="search">
      <TextInput className={ui.grow} label="Search" placeholder="A name, an id, a person" value={search.filter ?? ''} onChange={(event) => go({ ...search, filter: event.currentTarget.value || undefined })} />
      <Select label="Kind" data={types.map((type) => ({ value: type, label: eventTitle(type) }))} searchable clearable placeholder="All" value={search.type ?? null}
        onChange={(type) => go({ ...search, type: type ?? undefined })} />
    </div>
  );
  return (
    <LivePage title="Audit" text="Every change of the configuration and every agent session, with who made it, as it happens." tail={tail} tools={tools} row={row}
      keep={wanted ? matches : undefined} heads={['Time', 'What', 'Who', 'Object']}
      empty={{ title: 'Nothing has changed since you opened this page', text: 'Read what happened before from the audit log, beside the server:', command: 'culvert audit export --from 2026-01-01T00:00:00Z' }} />
  );
}
