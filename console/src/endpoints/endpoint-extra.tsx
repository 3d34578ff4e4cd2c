import { useQuery } from '@tanstack/react-query';
import { Suspense } from 'react';
import { lazyPart } from '@/api/load';
import { type JsonObject, text } from '@/api/json';
import { CopyButton } from '@/ui/copy';
import { Glance } from '@/ui/glance';
import { LinkButton } from '@/ui/link-button';
import { SubjectCharts } from '@/charts/subject-charts';
import { Breakable } from '@/ui/breakable';
import { Section, Tag } from '@/ui/page';
import { Loading } from '@/ui/states';
import ui from '@/ui/ui.module.css';
import { DryRun } from './dry-run';
import { PolicyHealth } from './policy-health';
import { Recent, recentQuery, UpState } from './recent';
import ServedBy from './served-by-cell';
import { UpstreamStates } from './upstream-states';

const RestrictByIp = lazyPart(() => import('./restrict-by-ip'));

/** The actions that a policy names, each once and in its order. */
function actionsOf(policy: string): string[] {
  const named = policy.matchAll(/\btype"?:\s*["']?([a-z][a-z-]+)/g);
  return [...new Set([...named].map(([, name]) => name ?? ''))];
}

/** What the endpoint is, where it goes, whether that answers, its policy and its traffic. */
export default function EndpointExtra({ object }: { object: JsonObject }) {
  const id = text(object.id);
  const url = text(object.public_url) || text(object.url);
  const web = /^https?:\/\//.test(url);
  const policy = text(object.traffic_policy);
  const actions = actionsOf(policy);
  const { data: recent } = useQuery(recentQuery(id, web));
  const address = (
    <span className={ui.idline}>
      {web ? (
        <a href={url} target="_blank" rel="noreferrer noopener">
          <Breakable text={url} />
        </a>
      ) : (
        <code>{url}</code>
      )}
      <CopyButton value={url} label="Copy the address" />
    </span>
  );
  return (
    <>
      {text(object.description) ? <p>{text(object.description)}</p> : null}
      <Glance
        items={[
          ['Public address', address],
          ['Goes to', <ServedBy key="to" object={object} />],
          ...(recent
            ? [
                ['State', <UpState key="up" last={recent[0]} />] as [
                  string,
                  React.ReactNode,
                ],
              ]
            : []),
          [
            'Traffic policy',
            actions.length > 0
              ? actions.map((name) => <Tag key={name}>{name}</Tag>)
              : policy
                ? 'Without actions'
                : 'None: all requests pass',
          ],
        ]}
      />
      {policy ? <PolicyHealth id={id} /> : null}
      {Array.isArray(object.upstreams) && object.upstreams.length > 0 ? (
        <UpstreamStates id={id} />
      ) : null}
      <Section
        title="Newest traffic"
        actions={
          <LinkButton
            size="xs"
            variant="default"
            to="/traffic"
            search={{ object: id }}
          >
            All its traffic
          </LinkButton>
        }
      >
        {recent && recent.length > 0 ? (
          <Recent events={recent} />
        ) : (
          <p className={ui.dim}>
            {recent
              ? 'No traffic is kept. A request appears here a second after its response.'
              : 'The page Traffic shows requests as they end.'}
          </p>
        )}
      </Section>
      <SubjectCharts subject="endpoint" id={id} />
      <Suspense fallback={<Loading />}>
        <RestrictByIp key={id} object={object} isWeb={web} />
      </Suspense>
      {web ? <DryRun key={id} id={id} policy={policy} /> : null}
    </>
  );
}
