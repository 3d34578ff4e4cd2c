import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import type { Node } from '../../generated/api';
import { RangeChoice } from '@/charts/range-choice';
import { Charts } from '@/charts/subject-charts';
import type { Range } from '@/charts/queries';
import { show } from '@/charts/units';
import { Page, Section, Tag } from '@/ui/page';
import { Empty, Failure, Loading } from '@/ui/states';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import { LEVELS } from './levels';
import { LostNodes } from './lost-nodes';
import { nodesQuery } from './queries';

const ENGINES: Record<string, string> = {
  sqlite: 'SQLite',
  postgres: 'PostgreSQL',
};
const LOGS: Record<string, string> = {
  embedded: 'In the database',
  nats: 'NATS JetStream',
};

function Revision({ node }: { node: Node }) {
  if (node.revision === null || node.revision === undefined)
    return <>No edge</>;
  return (
    <>
      {node.revision.toLocaleString()}{' '}
      {node.revision_lag === 0 ? (
        <Tag tone="ok">Current</Tag>
      ) : (
        <Tag tone="warn">{node.revision_lag} behind</Tag>
      )}
    </>
  );
}

function Facts({ node }: { node: Node }) {
  const level = LEVELS[node.overload_level];
  const rows: [string, React.ReactNode][] = [
    [
      'State',
      node.is_online ? (
        <Tag tone="ok">Online</Tag>
      ) : (
        <Tag tone="bad">Offline</Tag>
      ),
    ],
    ['Last seen', <Time key="seen" value={node.last_seen_at} relative />],
    ['Version', node.version],
    ['Started', <Time key="started" value={node.started_at} relative />],
    ['Roles', node.roles.join(', ')],
    ...(node.region
      ? [['Region', node.region] as [string, React.ReactNode]]
      : []),
    ['Configuration', <Revision key="revision" node={node} />],
    [
      'Overload',
      <Tag key="overload" tone={level?.tone ?? 'bad'}>
        {level?.label ?? node.overload_level}
      </Tag>,
    ],
    ['Agents', node.agent_sessions.toLocaleString()],
    ['Connections to other nodes', node.node_connections.toLocaleString()],
    [
      'Store',
      <>
        {ENGINES[node.store.engine] ?? node.store.engine},{' '}
        {show(node.store.write_ms, 'ms')} a write{' '}
        {node.store.is_read_only ? (
          <Tag tone="bad">Read-only: the disk was full</Tag>
        ) : null}
      </>,
    ],
    [
      'Event log',
      <>
        {LOGS[node.event_log.kind] ?? node.event_log.kind}{' '}
        {node.event_log.is_up ? null : <Tag tone="bad">Unavailable</Tag>}
      </>,
    ],
    ...Object.entries(node.addresses).map(
      ([name, address]) =>
        [`Address: ${name}`, <code key={name}>{address}</code>] as [
          string,
          React.ReactNode,
        ],
    ),
  ];
  return (
    <dl className={ui.fields}>
      {rows.map(([label, value]) => [
        <dt key={`${label} name`}>{label}</dt>,
        <dd key={label}>{value}</dd>,
      ])}
    </dl>
  );
}

/** The server processes of the installation. */
export default function NodesPage() {
  const nodes = useQuery(nodesQuery);
  const [range, setRange] = useState<Range>('1h');
  const list = nodes.data?.nodes ?? [];
  return (
    <Page
      title="Nodes"
      text="The server processes of this installation. Nodes on one PostgreSQL database form a cluster."
      actions={<RangeChoice value={range} onChange={setRange} />}
    >
      {nodes.isPending ? <Loading /> : null}
      {nodes.error ? (
        <Failure error={nodes.error} retry={() => void nodes.refetch()} />
      ) : null}
      {nodes.data && list.length === 0 ? (
        <Empty
          title="No node has described itself yet"
          text="Each does so within seconds of its start."
        />
      ) : null}
      <LostNodes nodes={list} />
      {list.map((node) => (
        <Section key={node.name} title={node.name}>
          <div className={ui.columns}>
            <Facts node={node} />
            <Charts subject="node" id={node.name} range={range} />
          </div>
        </Section>
      ))}
    </Page>
  );
}
