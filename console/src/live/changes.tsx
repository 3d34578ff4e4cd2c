import { useQuery } from '@tanstack/react-query';
import { type Json, type JsonObject, isObject, text } from '@/api/json';
import { call } from '@/api/http';
import { Value } from '@/resources/value';
import { Failure, Loading } from '@/ui/states';
import ui from '@/ui/ui.module.css';
import { CopyBlock } from '@/ui/copy';
import { flat } from './flat';
import type { LiveEvent } from './entry';

/** Events of one object that are read to find the one before. Several may have the same time. */
const LIMIT = 20;

/** The object as the event before this one has it. */
async function before(
  event: LiveEvent,
  signal: AbortSignal,
): Promise<JsonObject | null> {
  const query = new URLSearchParams({
    object_id: text(event.object.id),
    type: 'audit',
    to: event.event_timestamp,
    limit: String(LIMIT),
  });
  const page = await call('GET', `/events?${query}`, undefined, signal);
  const entries =
    isObject(page) && Array.isArray(page.events)
      ? page.events.filter(isObject)
      : [];
  const events = entries.map((entry) => entry.event).filter(isObject);
  const at = events.findIndex((one) => one.event_id === event.event_id);
  const older = events[at + 1];
  return older && isObject(older.object) ? older.object : null;
}

/** What a change changed. Events of earlier versions do not say it: there it is found in the event before. */
export function Changes({ event }: { event: LiveEvent }) {
  return event.previous ? (
    <Changed old={event.previous} event={event} />
  ) : (
    <ChangedSince event={event} />
  );
}

function ChangedSince({ event }: { event: LiveEvent }) {
  const found = useQuery({
    queryKey: ['events', event.event_id, 'before'],
    queryFn: ({ signal }) => before(event, signal),
    staleTime: Infinity,
  });
  if (found.isPending) return <Loading />;
  if (found.error)
    return <Failure error={found.error} retry={() => void found.refetch()} />;
  if (!found.data)
    return (
      <p className={ui.dim}>
        The audit log has no earlier event of this object, so what it was before
        is not known.
      </p>
    );
  return <Changed old={found.data} event={event} isWhole />;
}

/** The end of the name of a field that has the difference of two texts. */
const DIFF = '_diff';

/** The fields that differ between the object of an event and the fields before it. */
function Changed({
  old: fields,
  event,
  isWhole = false,
}: {
  old: JsonObject;
  event: LiveEvent;
  /** Whether the fields before are all fields of the object. */
  isWhole?: boolean;
}) {
  const diffs = Object.entries(fields).filter(([name]) => name.endsWith(DIFF));
  const ofDiff = new Set(
    diffs.flatMap(([name]) => [name, name.slice(0, -DIFF.length)]),
  );
  const top = (name: string) => name.split(/[.[]/, 1)[0] ?? name;
  const old = new Map(flat(fields, ''));
  const now = new Map(flat(event.object, ''));
  const names = [...new Set([...old.keys(), ...now.keys()])].filter(
    (name) => !ofDiff.has(top(name)) && (isWhole || top(name) in fields),
  );
  const changed = names.filter(
    (name) => JSON.stringify(old.get(name)) !== JSON.stringify(now.get(name)),
  );
  if (changed.length === 0 && diffs.length === 0)
    return (
      <p className={ui.dim}>No field is different. Secrets are in no event.</p>
    );
  const cell = (value: Json | undefined) =>
    value === undefined || value === '' ? (
      <span className={ui.dim}>not set</span>
    ) : (
      <Value value={value} />
    );
  const texts = diffs.map(([name, diff]) => (
    <CopyBlock
      key={name}
      value={text(diff)}
      label={`the difference of ${name.slice(0, -DIFF.length)}`}
    />
  ));
  if (changed.length === 0) return <>{texts}</>;
  return (
    <div
      className={ui.tableBox}
      role="region"
      aria-label="Changed fields"
      tabIndex={0}
    >
      {texts}
      <table className={ui.table}>
        <thead>
          <tr>
            <th scope="col">Field</th>
            <th scope="col">Before</th>
            <th scope="col">After</th>
          </tr>
        </thead>
        <tbody>
          {changed.map((name) => (
            <tr key={name}>
              <td>
                <code>{name}</code>
              </td>
              <td data-label="Before">
                <div>{cell(old.get(name))}</div>
              </td>
              <td data-label="After">
                <div>{cell(now.get(name))}</div>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
