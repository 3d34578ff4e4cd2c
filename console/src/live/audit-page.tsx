import { Select, TextInput } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useNavigate, useSearch } from '@tanstack/react-router';
import { type ReactNode, useCallback, useMemo } from 'react';
import { useModel } from '@/api/document';
import { refId, text } from '@/api/json';
import { eventTitle } from '@/api/words';
import { nameOf } from '@/resources/names';
import { RowTime } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import { withheldQuery } from './kept';
import { KeptPage } from './kept-page';
import { LivePage } from './live-page';
import type { LiveEvent } from './entry';
import { ProofSection } from './proof-section';
import { useTail } from './use-tail';
import { Views } from './views';

const HEADS = ['Time', 'What', 'Who', 'Object'];
/** All types of the audit log that the person may read. */
const ALL = ['audit'];
const NONE: string[] = [];
const SCOPE =
  'Changes of the configuration, sign-ins, agent sessions and refused calls, with who made them.';
const TRAFFIC = new Set([
  'http_request_complete.v0',
  'tcp_connection_closed.v0',
]);

function who({ principal }: LiveEvent): string {
  return (
    text(principal?.subject) ||
    (principal ? (refId(principal) ?? text(principal.id)) : 'the server')
  );
}

function row(event: LiveEvent) {
  return (
    <>
      <RowTime value={event.event_timestamp} />
      <span title={event.event_type}>{eventTitle(event.event_type)}</span>
      <span title={who(event)}>{who(event)}</span>
      <span title={nameOf(event.object)}>{nameOf(event.object)}</span>
    </>
  );
}

/** The types that the person may read, and a sentence about those that only admins may. */
function useAuditTypes(): { types: string[]; note: string } {
  const { eventTypes } = useModel();
  const { data: withheld = NONE } = useQuery(withheldQuery('audit'));
  return useMemo(
    () => ({
      types: eventTypes.filter(
        (type) => !TRAFFIC.has(type) && !withheld.includes(type),
      ),
      note:
        withheld.length > 0
          ? ` ${withheld.length} types of events, such as those about keys, sign-ins and policies, are visible to admins only.`
          : '',
    }),
    [eventTypes, withheld],
  );
}

/** Changes of the configuration: as they happen, and those of the audit log. */
export default function AuditPage() {
  const search = useSearch({ from: '/audit' });
  const navigate = useNavigate();
  const { types, note } = useAuditTypes();
  const kinds = useMemo(
    () => types.map((type) => ({ value: type, label: eventTitle(type) })),
    [types],
  );
  const views = (
    <Views
      view={search.view}
      onView={(view) => void navigate({ to: '/audit', search: { view } })}
    />
  );
  return search.view === 'kept' ? (
    <KeptPage
      title="Audit"
      text={`${SCOPE}${note}`}
      views={views}
      kinds={kinds}
      all={ALL}
      object="Object ID"
      empty={{
        title: 'The audit log is empty',
        text: 'The next change is here about a second after it is made.',
      }}
      hasActor
      above={<ProofSection />}
      row={row}
      heads={HEADS}
      search={search}
      onSearch={(next) =>
        void navigate({ to: '/audit', search: { ...next, view: 'kept' } })
      }
    />
  ) : (
    <LiveAudit views={views} />
  );
}

/** Changes as they happen. */
function LiveAudit({ views }: { views: ReactNode }) {
  const search = useSearch({ from: '/audit' });
  const navigate = useNavigate();
  const { types, note } = useAuditTypes();
  const tail = useTail({
    types: search.type ? [search.type] : ALL,
    resumes: true,
  });
  const wanted = search.filter?.toLowerCase();
  const matches = useCallback(
    (event: LiveEvent) =>
      !wanted || JSON.stringify(event).toLowerCase().includes(wanted),
    [wanted],
  );
  const go = (next: {
    filter?: string | undefined;
    type?: string | undefined;
  }) => void navigate({ to: '/audit', search: next, replace: true });
  const tools = (
    <div className={ui.toolbar} role="search">
      <TextInput
        className={ui.grow}
        label="Search"
        placeholder="A name, an id, a person"
        value={search.filter ?? ''}
        onChange={(event) =>
          go({ ...search, filter: event.currentTarget.value || undefined })
        }
      />
      <Select
        label="Kind"
        data={types.map((type) => ({ value: type, label: eventTitle(type) }))}
        searchable
        clearable
        placeholder="All"
        value={search.type ?? null}
        onChange={(type) => go({ ...search, type: type ?? undefined })}
      />
    </div>
  );
  return (
    <LivePage
      title="Audit"
      text={`${SCOPE} New ones appear as they happen.${note}`}
      tail={tail}
      views={views}
      tools={tools}
      row={row}
      keep={wanted ? matches : undefined}
      heads={HEADS}
      empty={{
        title: 'Nothing has changed since you opened this page',
        text: 'Earlier changes are under “Kept”.',
        command: 'culvert events query --from 2026-01-01T00:00:00Z',
      }}
    />
  );
}
