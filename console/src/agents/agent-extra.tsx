import { useQuery } from '@tanstack/react-query';
import { useModel } from '@/api/document';
import { type JsonObject, refId, text } from '@/api/json';
import { counted } from '@/api/words';
import { SubjectCharts } from '@/charts/subject-charts';
import { ActionButton } from '@/resources/actions';
import { listAt } from '@/resources/queries';
import { ResourceTable } from '@/resources/table';
import { Glance } from '@/ui/glance';
import { Section } from '@/ui/page';
import { Failure, Loading } from '@/ui/states';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';

const LABELS: Record<string, string> = {
  stop: 'Stop',
  restart: 'Restart',
};

/** Pages of endpoints that are read at most. */
const PAGES_MAX = 20;

/** The endpoints of an agent. The API has no filter for it, so all endpoints of agents are read. */
async function endpointsOf(
  id: string,
  signal: AbortSignal,
): Promise<JsonObject[]> {
  const found: JsonObject[] = [];
  let before: string | undefined;
  for (let page = 0; page < PAGES_MAX; page += 1) {
    const { objects, next } = await listAt(
      '/endpoints',
      'endpoints',
      { filter: 'obj.type == "agent"', before },
      100,
      signal,
    );
    found.push(
      ...objects.filter(({ tunnel_session: session }) => refId(session) === id),
    );
    if (!next) break;
    before = next;
  }
  return found;
}

/** What a connected agent serves, and the buttons that stop and restart it. */
export default function AgentExtra({ object }: { object: JsonObject }) {
  const resources = useModel().resources;
  const resource = resources.get('tunnel_sessions');
  const endpoints = resources.get('endpoints');
  const id = String(object.id);
  const isSsh = text(object.transport) === 'ssh';
  const served = useQuery({
    queryKey: ['endpoints', 'of agent', id],
    queryFn: ({ signal }) => endpointsOf(id, signal),
    refetchInterval: 5000,
  });
  return (
    <>
      <Glance
        items={[
          ['Machine', [text(object.os), text(object.ip)].join(', ')],
          ['Agent', text(object.agent_version)],
          [
            'Connected',
            <Time key="since" value={text(object.started_at)} relative />,
          ],
          [
            'Serves',
            served.data ? counted(served.data.length, 'endpoint') : '',
          ],
        ]}
      />
      <div className={ui.toolbar}>
        {resource?.below
          .filter(
            ({ command }) =>
              command === 'stop' || (command === 'restart' && !isSsh),
          )
          .map((operation) => (
            <ActionButton
              key={operation.id}
              resource={resource}
              operation={operation}
              id={id}
              label={LABELS[operation.command] ?? operation.command}
              danger={operation.command === 'stop'}
            />
          ))}
      </div>
      <p className={ui.dim}>
        {isSsh
          ? 'An SSH client cannot be restarted or updated from here.'
          : 'An agent is updated on its machine: install the newer version there, then restart it.'}
      </p>
      <Section title="Endpoints">
        {served.isPending ? <Loading /> : null}
        {served.error ? <Failure error={served.error} /> : null}
        {served.data?.length === 0 ? (
          <p className={ui.dim}>This agent serves nothing now.</p>
        ) : null}
        {endpoints && served.data?.length ? (
          <ResourceTable
            resource={endpoints}
            objects={served.data}
            label="Endpoints of this agent"
          />
        ) : null}
      </Section>
      <SubjectCharts subject="agent" id={id} />
    </>
  );
}
