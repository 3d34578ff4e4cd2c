import { useQuery } from '@tanstack/react-query';
import { Link } from '@tanstack/react-router';
import { useMemo } from 'react';
import { useModel, useModelIfThere } from '@/api/document';
import { type JsonObject, text } from '@/api/json';
import type { Resource } from '@/api/model';
import { listOf, withoutEvents } from '@/api/unlisted';
import { nameOf } from '@/resources/names';
import { listAt } from '@/resources/queries';
import { Value } from '@/resources/value';
import { Section } from '@/ui/page';
import { Failure, Loading } from '@/ui/states';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';

const DAY_MS = 86_400_000;
const MOST = 20;
/** Pages of a hundred endpoints that are read at most. */
const PAGES_MAX = 10;

interface Latest {
  changed: JsonObject[];
  /** Whether there are more endpoints than were read. The API has no filter for `updated_at`. */
  isPart: boolean;
}

async function latest(resource: Resource, signal: AbortSignal): Promise<Latest> {
  const since = new Date(Date.now() - DAY_MS).toISOString();
  const found: JsonObject[] = [];
  let before: string | undefined;
  for (let page = 0; page < PAGES_MAX; page += 1) {
    // oxlint-disable-next-line no-await-in-loop
    const { objects, next } = await listAt(`/${resource.name}`, resource.listKey, { before }, 100, signal);
    found.push(...objects.filter((object) => text(object.updated_at) > since));
    before = next;
    if (!next) break;
  }
  return { changed: found.toSorted((a, b) => text(b.updated_at).localeCompare(text(a.updated_at))).slice(0, MOST), isPart: before !== undefined };
}

/** What the objects themselves say of changes that have no events: when, not what, and by whom they were created. */
export function Unlisted() {
  const readable = useModel().resources;
  const model = useModelIfThere();
  const all = useMemo(() => (model ? withoutEvents(model) : []), [model]);
  const dated = all.some(({ name }) => name === 'endpoints') ? readable.get('endpoints') : undefined;
  const found = useQuery({
    queryKey: ['endpoints', 'latest'],
    enabled: dated !== undefined,
    queryFn: ({ signal }) => (dated ? latest(dated, signal) : Promise.resolve(undefined)),
    refetchInterval: 30_000,
  });
  if (all.length === 0) return null;
  return (
    <Section title="Changes that are not in the audit log">
      <p className={ui.hint}>There are no event types for {listOf(all)}. Their changes are not recorded. An endpoint keeps only the time of its last change and its owner; a deleted one leaves no trace.</p>
      {found.isPending && dated ? <Loading /> : null}
      {found.error ? <Failure error={found.error} retry={() => void found.refetch()} /> : null}
      {found.data?.isPart ? <p className={ui.dim}>There are more than {PAGES_MAX * 100} endpoints: only the newest are searched for changes.</p> : null}
      {found.data && found.data.changed.length === 0 ? <p className={ui.dim}>No endpoint was created or changed in the last 24 hours.</p> : null}
      {found.data && found.data.changed.length > 0 ? (
        <div className={ui.tableBox} role="region" aria-label="Endpoints that were changed last" tabIndex={0}>
          <table className={ui.table} data-long="true">
            <thead><tr><th scope="col">Endpoint, changed in the last 24 hours</th><th scope="col">Last change</th><th scope="col">Created</th><th scope="col">Owner</th><th scope="col">Metadata</th></tr></thead>
            <tbody>
              {found.data.changed.map((object) => (
                <tr key={text(object.id)}>
                  <td><Link className={ui.strong} to="/$collection/$id" params={{ collection: 'endpoints', id: text(object.id) }}>{nameOf(object)}</Link></td>
                  <td data-label="Last change"><Time value={text(object.updated_at)} relative /></td>
                  <td data-label="Created"><Time value={text(object.created_at)} relative /></td>
                  <td data-label="Owner"><div><Value value={object.principal} short /></div></td>
                  <td data-label="Metadata"><div>{text(object.metadata).slice(0, 80) || '–'}</div></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
    </Section>
  );
}
