import { useQueries } from '@tanstack/react-query';
import { Link } from '@/routing/link';
import { useNavigate, useSearch } from '@/routing/view';
import { useMemo, useState } from 'react';
import type { Statistics } from '../../generated/api';
import { useModel } from '@/api/document';
import { Chart } from '@/charts/chart';
import css from '@/charts/charts.module.css';
import { rangeOf, statisticsQuery } from '@/charts/queries';
import { RangeChoice } from '@/charts/range-choice';
import { draw, type Read } from '@/charts/series';
import { show, type Unit } from '@/charts/units';
import { nameQuery } from '@/resources/name-of-id';
import { Breakable } from '@/ui/breakable';
import { Button } from '@/ui/button';
import { toClipboard } from '@/ui/clipboard';
import { Icon } from '@/ui/icons';
import { LinkButton } from '@/ui/link-button';
import { Page, Section } from '@/ui/page';
import { Empty, Failure, Loading } from '@/ui/states';
import { announce } from '@/ui/toast';
import ui from '@/ui/ui.module.css';
import { FEWEST, idsOf, MOST } from './compared';
import { failedShare } from './last-minute';
import { word } from '@/live/where';

const comparedOf = (search: Record<string, unknown>) => ({
  endpoints: word(search.endpoints),
  range: word(search.range),
});

interface Measure {
  title: string;
  unit: Unit;
  read: Read;
  /** Steps without requests are gaps, and not 0. */
  gaps: boolean;
}

const latency = (name: 'p50' | 'p95' | 'p99'): Measure => ({
  title: `Latency ${name}`,
  unit: 'ms',
  gaps: true,
  read: ({ latency }) => latency?.[`${name}_ms`] ?? null,
});

const MEASURES: Measure[] = [
  latency('p50'),
  latency('p95'),
  latency('p99'),
  {
    title: 'Error rate',
    unit: 'share',
    gaps: true,
    read: ({ traffic }) => failedShare(traffic ?? undefined) ?? null,
  },
  {
    title: 'Requests a second',
    unit: 'rate',
    gaps: false,
    read: ({ traffic }, seconds) => (traffic?.requests ?? 0) / seconds,
  },
];

interface Compared {
  id: string;
  name: string;
  color: string;
  statistics: Statistics;
}

function CopyLink() {
  const copy = async () =>
    announce(
      (await toClipboard(location.href))
        ? 'Copied.'
        : 'The browser does not allow copying. Copy the address of the page.',
    );
  return (
    <Button variant="default" onClick={() => void copy()}>
      Copy the link
    </Button>
  );
}

/** One measure of all endpoints. Their steps may begin one apart, because they were asked for one after another. */
function Measured({
  measure,
  all,
  at,
  onAt,
}: {
  measure: Measure;
  all: Compared[];
  at: number | null;
  onAt: (index: number | null) => void;
}) {
  const { times, lines } = useMemo(() => {
    const drawn = all.map(({ name, color, statistics }) => {
      const line = { label: name, color, read: measure.read };
      return draw(statistics, [line], measure.gaps);
    });
    const steps = [...new Set(drawn.flatMap((one) => one.times))].toSorted(
      (a, b) => a - b,
    );
    return {
      times: steps,
      lines: drawn.flatMap((one) =>
        one.lines.map((line) => {
          const values = new Map(
            one.times.map((time, index) => [time, line.values[index] ?? null]),
          );
          return {
            ...line,
            values: steps.map((time) => values.get(time) ?? null),
          };
        }),
      ),
    };
  }, [all, measure]);
  return (
    <Chart
      title={measure.title}
      times={times}
      lines={lines}
      unit={measure.unit}
      at={at}
      onAt={onAt}
    />
  );
}

/** The whole range as numbers. */
function Totals({ all }: { all: Compared[] }) {
  const ms = (value: number | undefined) =>
    value === undefined ? '–' : show(value, 'ms');
  return (
    <div
      className={ui.tableBox}
      role="region"
      aria-label="The whole range"
      tabIndex={0}
    >
      <table className={ui.table}>
        <thead>
          <tr>
            {['Endpoint', 'Requests', 'Errors', 'p50', 'p95', 'p99'].map(
              (head) => (
                <th key={head} scope="col">
                  {head}
                </th>
              ),
            )}
          </tr>
        </thead>
        <tbody>
          {all.map(({ id, name, statistics: { total } }) => {
            const share = failedShare(total.traffic ?? undefined);
            return (
              <tr key={id}>
                <td>
                  <Link
                    className={ui.strong}
                    to="/$collection/$id"
                    params={{ collection: 'endpoints', id }}
                    title={id}
                  >
                    <Breakable text={name} />
                  </Link>
                </td>
                <td data-label="Requests">
                  {(total.traffic?.requests ?? 0).toLocaleString()}
                </td>
                <td data-label="Errors">
                  {share === undefined ? '–' : show(share, 'share')}
                </td>
                <td data-label="p50">{ms(total.latency?.p50_ms)}</td>
                <td data-label="p95">{ms(total.latency?.p95_ms)}</td>
                <td data-label="p99">{ms(total.latency?.p99_ms)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

/** Two or more endpoints beside each other: latency, errors and requests of each, over one range of time. */
export default function ComparePage() {
  const search = useSearch(comparedOf);
  const navigate = useNavigate();
  const ids = idsOf(search.endpoints);
  const range = rangeOf(search.range).value;
  const endpoints = useModel().resources.get('endpoints');
  const named = useQueries({
    queries: ids.map((id) => nameQuery(endpoints, id)),
  });
  const names = ids.map((id, index) => named[index]?.data ?? id);
  const answers = useQueries({
    queries: ids.map((id) => statisticsQuery('endpoint', id, range)),
  });
  const [at, setAt] = useState<number | null>(null);
  const go = (next: { endpoints?: string; range?: string }) =>
    void navigate({ to: '/compare', search: { ...search, ...next } });
  const failed = answers.find(({ error }) => error);
  const all = answers.flatMap(({ data: statistics }, index): Compared[] => {
    const id = ids[index];
    return id && statistics
      ? [
          {
            id,
            // Two endpoints may share a URL.
            name:
              names.filter((name) => name === names[index]).length > 1
                ? `${names[index]} (${id})`
                : (names[index] ?? id),
            color: `c${index + 1}`,
            statistics,
          },
        ]
      : [];
  });
  return (
    <Page
      title="Compare endpoints"
      text="Latency, errors and requests of each endpoint in one chart."
      actions={ids.length < FEWEST ? null : <CopyLink />}
    >
      {ids.length < FEWEST ? (
        <Empty
          title={`Choose ${FEWEST} to ${MOST} endpoints`}
          text="Press Compare in the list of endpoints, and choose them there."
          action={
            <LinkButton to="/$collection" params={{ collection: 'endpoints' }}>
              Go to the endpoints
            </LinkButton>
          }
        />
      ) : (
        <Section
          title="Statistics"
          actions={
            <RangeChoice
              value={range}
              onChange={(value) => go({ range: value })}
            />
          }
        >
          <ul className={css.picked} aria-label="Compared endpoints">
            {ids.map((id, index) => (
              <li key={id}>
                <span title={id}>{names[index]}</span>
                <button
                  type="button"
                  aria-label={`Leave out ${names[index]}`}
                  onClick={() =>
                    go({ endpoints: ids.filter((one) => one !== id).join(',') })
                  }
                >
                  <Icon name="close" size={12} />
                </button>
              </li>
            ))}
          </ul>
          {failed?.error ? (
            <Failure error={failed.error} retry={() => void failed.refetch()} />
          ) : null}
          {!failed && all.length < ids.length ? <Loading /> : null}
          {all.length > 0 ? (
            <>
              <div className={css.charts}>
                {MEASURES.map((measure) => (
                  <Measured
                    key={measure.title}
                    measure={measure}
                    all={all}
                    at={at}
                    onAt={setAt}
                  />
                ))}
              </div>
              <Totals all={all} />
            </>
          ) : null}
        </Section>
      )}
    </Page>
  );
}
