import { useQuery } from '@tanstack/react-query';
import { useNavigate, useSearch } from '@/routing/view';
import { useCallback } from 'react';
import { refId, text } from '@/api/json';
import { counted, eventTitle } from '@/api/words';
import { nameOf } from '@/resources/names';
import { RowTime } from '@/ui/time';
import type { KeptEvent, LiveEvent } from './entry';
import { type EventSearch, withheldQuery } from './kept';
import { InRow } from './narrow';
import { ProofSection } from './proof-section';
import { Timeline } from './timeline';
import { searchOf } from './where';

const HEADS = ['Time', 'What', 'Who', 'Object'];
/** All types of the audit log that the person may read. */
const ALL = ['audit'];
const SCOPE =
  'Changes of the configuration, sign-ins, agent sessions and refused calls, with who made them. New ones appear as they happen.';

function who({ principal }: LiveEvent): string {
  return (
    text(principal?.subject) ||
    (principal ? (refId(principal) ?? text(principal.id)) : 'the server')
  );
}

function row(event: LiveEvent) {
  const { event_type, event_timestamp, principal, object } = event;
  const actor = text(principal?.id);
  const id = text(object.id);
  const name = nameOf(object);
  return (
    <>
      <RowTime value={event_timestamp} />
      <span title={event_type}>{eventTitle(event_type)}</span>
      <span title={who(event)}>
        {actor ? (
          <InRow facet="by" word={actor}>
            {who(event)}
          </InRow>
        ) : (
          who(event)
        )}
      </span>
      <span title={name}>
        {id ? (
          <InRow facet="object" word={id}>
            {name}
          </InRow>
        ) : (
          name
        )}
      </span>
    </>
  );
}

const EXPORTED = [
  ...(['event_timestamp', 'event_type', 'event_id'] as const).map((name) => ({
    name,
    of: (event: KeptEvent) => event[name],
  })),
  { name: 'actor', of: who },
  { name: 'actor_id', of: ({ principal }: KeptEvent) => principal?.id },
  { name: 'object_id', of: ({ object }: KeptEvent) => object.id },
  { name: 'object', of: ({ object }: KeptEvent) => nameOf(object) },
  { name: 'position', of: ({ audit }: KeptEvent) => audit?.position },
  { name: 'hash', of: ({ audit }: KeptEvent) => audit?.hash },
];

const EMPTY = {
  title: 'The audit log is empty',
  text: 'The next change is here about a second after it is made.',
};
const every = () => true;

/** Changes of the configuration. */
export default function AuditPage() {
  const search = useSearch(searchOf);
  const navigate = useNavigate();
  const { data: withheld = [] } = useQuery(withheldQuery('audit'));
  const onSearch = useCallback(
    (next: EventSearch) => void navigate({ to: '/audit', search: next }),
    [navigate],
  );
  const note =
    withheld.length > 0
      ? ` ${counted(withheld.length, 'type')} of events, such as those about keys, sign-ins and policies, are visible to admins only.`
      : '';
  return (
    <Timeline
      title="Audit"
      text={SCOPE + note}
      placeholder="by:anna@example.com type:endpoint_updated last 7 days"
      all={ALL}
      search={search}
      onSearch={onSearch}
      shows={every}
      heads={HEADS}
      row={row}
      columns={EXPORTED}
      empty={EMPTY}
      below={<ProofSection />}
    />
  );
}
