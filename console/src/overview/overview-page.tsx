import { useQuery } from '@tanstack/react-query';
import { Link } from '@/routing/link';
import { useNavigate, useSearch } from '@/routing/view';
import { lazy, Suspense, useCallback, useEffect, useState } from 'react';
import { useCollection } from '@/api/collections';
import { load } from '@/api/load';
import { rangeOf, statisticsQuery } from '@/charts/queries';
import { text } from '@/api/json';
import HealthCell from '@/events/health-cell';
import { nameOf } from '@/resources/names';
import { listQuery } from '@/resources/queries';
import { Page, Section } from '@/ui/page';
import { Failure } from '@/ui/states';
import ui from '@/ui/ui.module.css';
import { LiveRates } from './live-rates';
import { Notices } from './notices';
import { LostNodesOfAll, Nodes } from './overload';
import { TrafficStatistics } from './traffic-statistics';
import css from './overview.module.css';
import { word } from '@/live/where';

const Checklist = lazy(() => load(() => import('./checklist')));

const rangeSearch = (search: Record<string, unknown>) => ({
  range: word(search.range),
});

const COUNTED = [
  { name: 'endpoints', label: 'Endpoints' },
  { name: 'tunnel_sessions', label: 'Agents online' },
  { name: 'reserved_domains', label: 'Domains' },
  { name: 'event_destinations', label: 'Destinations' },
  { name: 'api_keys', label: 'API keys' },
];
const MOST = 100;

function useList(name: string) {
  return useQuery({
    ...listQuery(useCollection(name), {}, MOST),
    refetchInterval: 5000,
  });
}

function Count({ name, label }: { name: string; label: string }) {
  const { data, error } = useList(name);
  const count = data
    ? `${data.objects.length}${data.next ? '+' : ''}`
    : error
      ? '?'
      : '…';
  return (
    <Link
      to="/$collection"
      params={{ collection: name }}
      search={{}}
      className={css.count}
    >
      <b>{count}</b>
      <span>{label}</span>
    </Link>
  );
}

function Destinations() {
  const { data, error } = useList('event_destinations');
  if (error) return <Failure error={error} />;
  return (
    <Section title="Destinations">
      {data?.objects.length === 0 ? (
        <p className={ui.dim}>
          None yet.{' '}
          <Link
            to="/$collection/new"
            params={{ collection: 'event_destinations' }}
            search={{}}
          >
            Send events somewhere
          </Link>
        </p>
      ) : null}
      <ul className={ui.items}>
        {data?.objects.slice(0, 8).map((object) => (
          <li key={text(object.id)} className={css.line}>
            <Link
              to="/$collection/$id"
              params={{ collection: 'event_destinations', id: text(object.id) }}
            >
              {nameOf(object)}
            </Link>
            <HealthCell object={object} />
          </li>
        ))}
      </ul>
    </Section>
  );
}

function Agents() {
  const { data, error } = useList('tunnel_sessions');
  if (error) return <Failure error={error} />;
  return (
    <Section title="Agents online">
      {data?.objects.length === 0 ? (
        <p className={ui.dim}>
          None. <Link to="/connect">Connect an agent</Link>
        </p>
      ) : null}
      <ul className={ui.items}>
        {data?.objects.slice(0, 8).map((object) => (
          <li key={text(object.id)} className={css.line}>
            <Link
              to="/$collection/$id"
              params={{ collection: 'tunnel_sessions', id: text(object.id) }}
            >
              {text(object.metadata) ||
                text(object.agent_version) ||
                text(object.id)}
            </Link>
            <span className={ui.dim}>
              {text(object.ip)} · {text(object.os)}
            </span>
          </li>
        ))}
      </ul>
    </Section>
  );
}

const SEEN = 'culvert-first-request';

export default function OverviewPage() {
  const [seen, setSeen] = useState(() => localStorage.getItem(SEEN) !== null);
  const onRequest = useCallback(() => {
    localStorage.setItem(SEEN, '1');
    setSeen(true);
  }, []);
  // A person may come after the first request, or with another browser.
  const counted = useQuery({
    ...statisticsQuery('account', undefined, '30d'),
    enabled: !seen,
  }).data?.total.traffic;
  const isCounted = (counted?.requests ?? 0) > 0;
  useEffect(() => {
    if (isCounted) onRequest();
  }, [isCounted, onRequest]);
  const search = useSearch(rangeSearch);
  const navigate = useNavigate();
  const endpoints = useList('endpoints').data?.objects;
  const agents = useList('tunnel_sessions').data?.objects;
  return (
    <Page title="Overview">
      <Notices />
      <LostNodesOfAll />
      {endpoints && !seen ? (
        <Suspense fallback={null}>
          <Checklist
            endpoints={endpoints}
            agents={agents?.length ?? 0}
            seen={seen}
          />
        </Suspense>
      ) : null}
      <div className={css.counts}>
        {COUNTED.map((one) => (
          <Count key={one.name} {...one} />
        ))}
        <Nodes />
      </div>
      <LiveRates onRequest={onRequest} />
      <TrafficStatistics
        range={rangeOf(search.range).value}
        onRange={(range) =>
          void navigate({ to: '/', search: { range }, replace: true })
        }
      />
      <div className={ui.columns}>
        <Destinations />
        <Agents />
      </div>
    </Page>
  );
}
