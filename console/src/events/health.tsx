import { useQuery } from '@tanstack/react-query';
import { Button } from '@/ui/button';
import type { EventDestinationHealth } from '../../generated/api';
import { counted } from '@/api/words';
import { Section } from '@/ui/page';
import { Failure, Loading } from '@/ui/states';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import { HealthTag } from './health-tag';
import { healthQuery } from './queries';
import { TestResult, useTestEvent } from './test-event';

function Figures({ health }: { health: EventDestinationHealth }) {
  const rows: [string, React.ReactNode][] = [
    ['State', <HealthTag key="state" health={health} />],
    [
      'Last success',
      health.last_success_at ? (
        <Time key="success" value={health.last_success_at} relative />
      ) : (
        'Never'
      ),
    ],
    [
      'Last failure',
      health.last_error_at ? (
        <Time key="failure" value={health.last_error_at} relative />
      ) : (
        'Never'
      ),
    ],
    ...(health.last_error
      ? [
          [
            'Why it failed',
            `${health.last_error.text} (${health.last_error.class}, ${health.last_error.code})`,
          ] as [string, React.ReactNode],
        ]
      : []),
    [
      'Delivered',
      `${counted(health.sent, 'event')}, ${counted(health.bytes, 'byte')}`,
    ],
    ['Waiting', health.queued.toLocaleString()],
    ['Dropped', health.dropped.toLocaleString()],
    ['Dead letters', health.dead_lettered.toLocaleString()],
    ...(health.nodes.length > 1
      ? health.nodes.map(
          (node) =>
            [
              node.node,
              `${node.state}, ${node.sent.toLocaleString()} delivered`,
            ] as [string, React.ReactNode],
        )
      : []),
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

export function Health({ id }: { id: string }) {
  const health = useQuery(healthQuery(id));
  const test = useTestEvent(id);
  return (
    <Section
      title="Health"
      actions={
        <Button
          size="xs"
          variant="default"
          loading={test.isPending}
          onClick={() => test.mutate()}
        >
          Send a test event
        </Button>
      }
    >
      <TestResult test={test} />
      {health.isPending ? <Loading /> : null}
      {health.error ? <Failure error={health.error} /> : null}
      {health.data ? <Figures health={health.data} /> : null}
    </Section>
  );
}
