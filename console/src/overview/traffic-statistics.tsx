import { useQuery } from '@tanstack/react-query';
import { Link } from '@/routing/link';
import { useCollection, useCollections } from '@/api/collections';
import { text } from '@/api/json';
import {
  type Range,
  rangeOf,
  statisticsQuery,
  topQuery,
} from '@/charts/queries';
import { RangeChoice } from '@/charts/range-choice';
import { Charts } from '@/charts/subject-charts';
import { show } from '@/charts/units';
import { nameOf } from '@/resources/names';
import { listQuery } from '@/resources/queries';
import { Section } from '@/ui/page';
import { Failure } from '@/ui/states';
import ui from '@/ui/ui.module.css';
import css from './overview.module.css';

/** The server takes ranges of at most seven days, and looks at its clock after the page did. */
const WEEK = 604_800 - 300;
const MOST = 100;

function Figures({ range }: { range: Range }) {
  const { data } = useQuery(statisticsQuery('account', undefined, range));
  const traffic = data?.total.traffic;
  if (!traffic || traffic.requests === 0) return null;
  const latency = data.total.latency;
  const figures: [string, string][] = [
    ['requests', traffic.requests.toLocaleString()],
    [
      'errors',
      show((traffic.status_5xx + traffic.aborted) / traffic.requests, 'share'),
    ],
    ['p50', latency ? show(latency.p50_ms, 'ms') : '–'],
    ['p95', latency ? show(latency.p95_ms, 'ms') : '–'],
    ['p99', latency ? show(latency.p99_ms, 'ms') : '–'],
    ['in', show(traffic.bytes_in, 'bytes')],
    ['out', show(traffic.bytes_out, 'bytes')],
  ];
  return (
    <div className={css.totals}>
      {figures.map(([label, value]) => (
        <div key={label}>
          <b>{value}</b>
          <span>{label}</span>
        </div>
      ))}
    </div>
  );
}

function Top({ range }: { range: Range }) {
  const { seconds } = rangeOf(range);
  const span = Math.min(seconds, WEEK);
  const top = useQuery(topQuery('endpoint', span, 'requests', 10));
  const resource = useCollection('endpoints');
  const known = useQuery(listQuery(resource, {}, MOST)).data?.objects ?? [];
  if (top.error) return <Failure error={top.error} />;
  if (!top.data || top.data.top.length === 0) return null;
  return (
    <Section
      title={
        span < seconds
          ? 'Busiest endpoints of the last week'
          : 'Busiest endpoints'
      }
    >
      <div
        className={ui.tableBox}
        role="region"
        aria-label="Busiest endpoints"
        tabIndex={0}
      >
        <table className={ui.table}>
          <thead>
            <tr>
              <th scope="col">Endpoint</th>
              <th scope="col">Requests</th>
              <th scope="col">A second</th>
              <th scope="col">Errors</th>
              <th scope="col">p95</th>
              <th scope="col">Out</th>
            </tr>
          </thead>
          <tbody>
            {top.data.top.map(({ id, traffic, latency }) => {
              const object = known.find((one) => text(one.id) === id);
              return (
                <tr key={id}>
                  <td>
                    <Link
                      className={ui.strong}
                      to="/$collection/$id"
                      params={{ collection: 'endpoints', id }}
                    >
                      {object ? nameOf(object) : id}
                    </Link>
                  </td>
                  <td data-label="Requests">
                    {(traffic?.requests ?? 0).toLocaleString()}
                  </td>
                  <td data-label="A second">
                    {show((traffic?.requests ?? 0) / span, 'rate')}
                  </td>
                  <td data-label="Errors">
                    {traffic?.requests
                      ? show(
                          (traffic.status_5xx + traffic.aborted) /
                            traffic.requests,
                          'share',
                        )
                      : '–'}
                  </td>
                  <td data-label="p95">
                    {latency ? show(latency.p95_ms, 'ms') : '–'}
                  </td>
                  <td data-label="Out">
                    {show(traffic?.bytes_out ?? 0, 'bytes')}
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
    </Section>
  );
}

/** How often the edge refused for each reason, the most frequent first. */
const reasons = (counts: Record<string, number>): string =>
  Object.entries(counts)
    .toSorted(([, one], [, other]) => other - one)
    .map(
      ([reason, count]) =>
        `${reason.replaceAll('_', ' ')} ${count.toLocaleString()}`,
    )
    .join(', ');

/** What the edge refused: by address and reason, and for admins without an endpoint. */
function Refused({ range }: { range: Range }) {
  const { seconds } = rangeOf(range);
  const span = Math.min(seconds, WEEK);
  const top = useQuery(topQuery('endpoint', span, 'refused', 10));
  const isAdmin = useCollections().get('users')?.canCreate === true;
  const nodes = useQuery({
    ...statisticsQuery('node', undefined, range),
    enabled: isAdmin,
  });
  const resource = useCollection('endpoints');
  const known = useQuery(listQuery(resource, {}, MOST)).data?.objects ?? [];
  const elsewhere = nodes.data?.total.node;
  const refused = (top.data?.top ?? []).filter(
    ({ traffic }) => (traffic?.refused ?? 0) > 0,
  );
  if (top.error) return <Failure error={top.error} />;
  if (refused.length === 0 && !elsewhere?.refused) return null;
  return (
    <Section title="Refused">
      <div
        className={ui.tableBox}
        role="region"
        aria-label="Refused"
        tabIndex={0}
      >
        <table className={ui.table}>
          <thead>
            <tr>
              <th scope="col">Address</th>
              <th scope="col">Refused</th>
              <th scope="col">Reasons</th>
            </tr>
          </thead>
          <tbody>
            {refused.map(({ id, traffic }) => {
              const object = known.find((one) => text(one.id) === id);
              return (
                <tr key={id}>
                  <td>
                    <Link
                      className={ui.strong}
                      to="/$collection/$id"
                      params={{ collection: 'endpoints', id }}
                    >
                      {object ? nameOf(object) : id}
                    </Link>
                  </td>
                  <td data-label="Refused">
                    {(traffic?.refused ?? 0).toLocaleString()}
                  </td>
                  <td data-label="Reasons">
                    {reasons(traffic?.refused_by_reason ?? {})}
                  </td>
                </tr>
              );
            })}
            {elsewhere?.refused ? (
              <tr>
                <td>No endpoint</td>
                <td data-label="Refused">
                  {elsewhere.refused.toLocaleString()}
                </td>
                <td data-label="Reasons">
                  {reasons(elsewhere.refused_by_reason)}
                </td>
              </tr>
            ) : null}
          </tbody>
        </table>
      </div>
    </Section>
  );
}

/** The traffic of all endpoints over time, the busiest of them, and what was refused. */
export function TrafficStatistics({
  range,
  onRange,
}: {
  range: Range;
  onRange: (range: Range) => void;
}) {
  return (
    <>
      <Section
        title="Traffic over time"
        actions={<RangeChoice value={range} onChange={onRange} />}
      >
        <Figures range={range} />
        <Charts subject="account" range={range} />
      </Section>
      <Top range={range} />
      <Refused range={range} />
    </>
  );
}
