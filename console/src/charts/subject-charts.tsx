import { useQuery } from '@tanstack/react-query';
import { useMemo, useState } from 'react';
import type { Statistics } from '../../generated/api';
import { Section } from '@/ui/page';
import { Failure, Loading } from '@/ui/states';
import ui from '@/ui/ui.module.css';
import { Chart } from './chart';
import css from './charts.module.css';
import { type Range, type Subject, statisticsQuery } from './queries';
import { RangeChoice } from './range-choice';
import { type LineOf, draw } from './series';
import type { Unit } from './units';

interface ChartOf {
  title: string;
  unit: Unit;
  lines: LineOf[];
  /** Steps without anything counted are gaps, and not 0. */
  gaps?: boolean;
}

const LATENCY: ChartOf = {
  title: 'Latency',
  unit: 'ms',
  gaps: true,
  lines: [
    {
      label: 'p50',
      color: 'ok',
      read: ({ latency }) => latency?.p50_ms ?? null,
    },
    {
      label: 'p95',
      color: 'warn',
      read: ({ latency }) => latency?.p95_ms ?? null,
    },
    {
      label: 'p99',
      color: 'bad',
      read: ({ latency }) => latency?.p99_ms ?? null,
    },
  ],
};

const BYTES: ChartOf = {
  title: 'Bytes a second',
  unit: 'bytes',
  lines: [
    {
      label: 'in',
      color: 'accent',
      read: ({ traffic }, seconds) => (traffic?.bytes_in ?? 0) / seconds,
    },
    {
      label: 'out',
      color: 'warn',
      read: ({ traffic }, seconds) => (traffic?.bytes_out ?? 0) / seconds,
    },
  ],
};

const REQUESTS: ChartOf = {
  title: 'Requests a second by status',
  unit: 'rate',
  lines: [
    {
      label: '2xx',
      color: 'ok',
      read: ({ traffic }, seconds) => (traffic?.status_2xx ?? 0) / seconds,
    },
    {
      label: '3xx',
      color: 'other',
      read: ({ traffic }, seconds) => (traffic?.status_3xx ?? 0) / seconds,
    },
    {
      label: '4xx',
      color: 'warn',
      read: ({ traffic }, seconds) => (traffic?.status_4xx ?? 0) / seconds,
    },
    {
      label: '5xx',
      color: 'bad',
      read: ({ traffic }, seconds) => (traffic?.status_5xx ?? 0) / seconds,
    },
    {
      label: 'no response',
      color: 'quiet',
      read: ({ traffic }, seconds) => (traffic?.aborted ?? 0) / seconds,
    },
  ],
};

const ERRORS: ChartOf = {
  title: 'Error rate',
  unit: 'share',
  gaps: true,
  lines: [
    {
      label: '5xx or no response',
      color: 'bad',
      read: ({ traffic }) =>
        traffic?.requests
          ? (traffic.status_5xx + traffic.aborted) / traffic.requests
          : null,
    },
  ],
};

const REFUSED: ChartOf = {
  title: 'Refused a second',
  unit: 'rate',
  lines: [
    {
      label: 'by the edge',
      color: 'bad',
      read: ({ traffic, node }, seconds) =>
        (traffic?.refused ?? node?.refused ?? 0) / seconds,
    },
  ],
};

const STREAMS: ChartOf = {
  title: 'Streams a second',
  unit: 'rate',
  lines: [
    {
      label: 'opened',
      color: 'accent',
      read: ({ traffic }, seconds) => (traffic?.connections ?? 0) / seconds,
    },
  ],
};

const EVENTS: ChartOf = {
  title: 'Events a second',
  unit: 'rate',
  lines: [
    {
      label: 'delivered',
      color: 'ok',
      read: ({ delivery }, seconds) => (delivery?.delivered ?? 0) / seconds,
    },
    {
      label: 'dead letters',
      color: 'warn',
      read: ({ delivery }, seconds) => (delivery?.dead_lettered ?? 0) / seconds,
    },
    {
      label: 'lost',
      color: 'bad',
      read: ({ delivery }, seconds) => (delivery?.dropped ?? 0) / seconds,
    },
  ],
};

const WAITING: ChartOf = {
  title: 'Waiting events',
  unit: 'count',
  lines: [
    {
      label: 'waiting',
      color: 'accent',
      read: ({ delivery }) => delivery?.waiting ?? 0,
    },
  ],
};

const PROCESSOR: ChartOf = {
  title: 'Processors in use',
  unit: 'rate',
  gaps: true,
  lines: [
    {
      label: 'processors',
      color: 'accent',
      read: ({ node }, seconds) => (node?.cpu_seconds ?? 0) / seconds,
    },
  ],
};

const MEMORY: ChartOf = {
  title: 'Memory',
  unit: 'bytes',
  gaps: true,
  lines: [
    {
      label: 'resident',
      color: 'accent',
      read: ({ node }) => node?.memory_bytes ?? null,
    },
  ],
};

const CONNECTIONS: ChartOf = {
  title: 'Open connections',
  unit: 'count',
  gaps: true,
  lines: [
    {
      label: 'clients',
      color: 'accent',
      read: ({ node }) => node?.open_connections ?? null,
    },
    {
      label: 'agents',
      color: 'warn',
      read: ({ node }) => node?.agent_sessions ?? null,
    },
  ],
};

const STORE: ChartOf = {
  title: 'Latency of a write to the store',
  unit: 'ms',
  gaps: true,
  lines: [
    {
      label: 'write',
      color: 'accent',
      read: ({ node }) => node?.store_write_ms ?? null,
    },
  ],
};

export const CHARTS: Record<Subject, ChartOf[]> = {
  account: [REQUESTS, ERRORS, LATENCY, BYTES, REFUSED],
  endpoint: [REQUESTS, ERRORS, LATENCY, BYTES, REFUSED],
  agent: [STREAMS, BYTES],
  destination: [EVENTS, { ...LATENCY, title: 'Duration of a send' }, WAITING],
  node: [PROCESSOR, MEMORY, CONNECTIONS, STORE, REFUSED],
};

interface DrawnProps {
  of: ChartOf;
  statistics: Statistics;
  at: number | null;
  onAt: (index: number | null) => void;
}

function Drawn({ of, statistics, at, onAt }: DrawnProps) {
  const { times, lines } = useMemo(
    () => draw(statistics, of.lines, of.gaps ?? false),
    [statistics, of],
  );
  return (
    <Chart
      title={of.title}
      times={times}
      lines={lines}
      unit={of.unit}
      at={at}
      onAt={onAt}
    />
  );
}

/** The charts of a subject in a range that is given. */
export function Charts({
  subject,
  id,
  range,
}: {
  subject: Subject;
  id?: string;
  range: Range;
}) {
  const statistics = useQuery(statisticsQuery(subject, id, range));
  // The charts have the same steps, so the pointer in one shows that moment in all.
  const [at, setAt] = useState<number | null>(null);
  if (statistics.error)
    return (
      <Failure
        error={statistics.error}
        retry={() => void statistics.refetch()}
      />
    );
  if (!statistics.data) return <Loading />;
  const { data } = statistics;
  if (data.points.length === 0)
    return (
      <p className={ui.dim}>
        Nothing was counted in this time. Statistics appear after ten seconds.
      </p>
    );
  return (
    <div className={css.charts}>
      {CHARTS[subject].map((of) => (
        <Drawn key={of.title} of={of} statistics={data} at={at} onAt={setAt} />
      ))}
    </div>
  );
}

/** The charts of a subject, with the choice of the range. */
export function SubjectCharts({
  subject,
  id,
}: {
  subject: Subject;
  id?: string;
}) {
  const [range, setRange] = useState<Range>('1h');
  return (
    <Section
      title="Statistics"
      actions={<RangeChoice value={range} onChange={setRange} />}
    >
      <Charts subject={subject} range={range} {...(id ? { id } : {})} />
    </Section>
  );
}
