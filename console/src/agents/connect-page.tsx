import { Select, Tabs, TextInput } from '@mantine/core';
import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { Link } from '@/routing/link';
import { useState } from 'react';
import { api, body } from '@/api/client';
import { nodesQuery } from '@/nodes/queries';
import { useSession } from '@/session/session';
import { Button } from '@/ui/button';
import { CopyBlock } from '@/ui/copy';
import { Page, Section } from '@/ui/page';
import { Failure } from '@/ui/states';
import ui from '@/ui/ui.module.css';
import { commandsFor } from './snippets';
import { useCaHash } from './ca-hash';

/** The last part of an address: its port. */
const portOf = (address: string | undefined): string | undefined =>
  /:(\d+)$/.exec(address ?? '')?.[1];

/** The ports where this installation accepts agents and SSH. Only admins see addresses; others get the usual ones. */
function useListeners(): { agents: string; ssh: string } {
  const isAdmin = useSession()?.role === 'admin';
  const { data } = useQuery({ ...nodesQuery, enabled: isAdmin });
  const found = data?.nodes.find(
    (node) => node.is_online && node.addresses.agents,
  )?.addresses;
  return {
    agents: portOf(found?.agents) ?? '8441',
    ssh: portOf(found?.ssh) ?? '2222',
  };
}

/** From nothing to a service online: a credential, then the command for the machine where the service runs. */
export default function ConnectPage() {
  const [port, setPort] = useState('3000');
  const [kind, setKind] = useState('http');
  const [typed, setServer] = useState<string>();
  const listeners = useListeners();
  const server = typed ?? `${location.hostname}:${listeners.agents}`;
  const client = useQueryClient();
  const create = useMutation({
    mutationFn: async () =>
      body(
        await api.POST('/credentials', {
          body: { description: 'made in the console' },
        }),
      ),
    onSuccess: () => client.invalidateQueries({ queryKey: ['credentials'] }),
  });
  const token = create.data?.token ?? undefined;
  const commands = commandsFor({
    token,
    port,
    kind,
    server,
    sshPort: listeners.ssh,
    origin: location.origin,
    caHash: useCaHash(),
  });
  return (
    <Page
      title="Connect an agent"
      text="An agent runs beside a service, dials out to this server and brings the service online. It needs no open port."
    >
      <Section title="1. A token for the agent">
        {token ? (
          <div className={ui.once} role="status">
            <p>
              <strong>Token.</strong> Copy it now. It is not shown again. The
              commands below have it.
            </p>
            <CopyBlock value={token} label="token" />
          </div>
        ) : (
          <>
            <p className={ui.dim}>
              Make a credential, or use the token of one you have.{' '}
              <Link
                to="/$collection"
                params={{ collection: 'credentials' }}
                search={{}}
              >
                See all credentials
              </Link>
            </p>
            <Button loading={create.isPending} onClick={() => create.mutate()}>
              Create a credential
            </Button>
            {create.error ? <Failure error={create.error} /> : null}
          </>
        )}
      </Section>
      <Section title="2. What it serves">
        <div className={ui.toolbar}>
          <Select
            label="Kind"
            data={[
              { value: 'http', label: 'HTTP' },
              { value: 'tcp', label: 'TCP' },
              { value: 'tls', label: 'TLS, end to end' },
            ]}
            value={kind}
            allowDeselect={false}
            onChange={(next) => setKind(next ?? 'http')}
          />
          <TextInput
            label="Port of the service"
            value={port}
            onChange={(event) => setPort(event.currentTarget.value)}
          />
          <TextInput
            label="Address for agents"
            value={server}
            onChange={(event) => setServer(event.currentTarget.value)}
          />
        </div>
      </Section>
      <Section title="3. Run it where the service runs">
        <Tabs defaultValue="culvert" keepMounted={false}>
          <Tabs.List aria-label="Kind of agent">
            {commands.map(({ id, label }) => (
              <Tabs.Tab key={id} value={id}>
                {label}
              </Tabs.Tab>
            ))}
          </Tabs.List>
          {commands.map(({ id, text, command }) => (
            <Tabs.Panel key={id} value={id} pt="sm">
              <p className={ui.hint}>{text}</p>
              <CopyBlock value={command} label="the command" />
            </Tabs.Panel>
          ))}
        </Tabs>
        <p className={ui.dim}>
          The agent appears under{' '}
          <Link
            to="/$collection"
            params={{ collection: 'tunnel_sessions' }}
            search={{}}
          >
            Agents
          </Link>{' '}
          within a second.
        </p>
      </Section>
    </Page>
  );
}
