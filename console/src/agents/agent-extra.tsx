import { useQuery } from '@tanstack/react-query';
import { api, body } from '@/api/client';
import { useModel } from '@/api/document';
import type { JsonObject } from '@/api/json';
import { SubjectCharts } from '@/charts/subject-charts';
import { ActionButton } from '@/resources/actions';
import { ResourceTable } from '@/resources/table';
import { Section } from '@/ui/page';
import { Failure, Loading } from '@/ui/states';
import ui from '@/ui/ui.module.css';

const LABELS: Record<string, string> = { stop: 'Stop', restart: 'Restart', 'update-agent': 'Update' };

/** What a connected agent serves, and the buttons that stop, restart and update it. */
export default function AgentExtra({ object }: { object: JsonObject }) {
  const resources = useModel().resources;
  const resource = resources.get('tunnel_sessions');
  const endpoints = resources.get('endpoints');
  const id = String(object.id);
  const served = useQuery({
    queryKey: ['endpoints', 'of agent', id],
    queryFn: async ({ signal }) => body(await api.GET('/endpoints', { params: { query: { limit: 100 } }, signal })).endpoints.filter((one) => one.tunnel_session?.id === id),
    refetchInterval: 5000,
  });
  return (
    <>
      <div className={ui.toolbar}>
        {resource?.below.filter((one) => one.method === 'POST').map((operation) => (
          <ActionButton key={operation.id} resource={resource} operation={operation} id={id} label={LABELS[operation.command] ?? operation.command} danger={operation.command === 'stop'} />
        ))}
      </div>
      <Section title="Endpoints">
        {served.isPending ? <Loading /> : null}
        {served.error ? <Failure error={served.error} /> : null}
        {served.data?.length === 0 ? <p className={ui.dim}>This agent serves nothing now.</p> : null}
        {endpoints && served.data?.length ? <ResourceTable resource={endpoints} objects={served.data as unknown as JsonObject[]} label="Endpoints of this agent" /> : null}
      </Section>
      <SubjectCharts subject="agent" id={id} />
    </>
  );
}
