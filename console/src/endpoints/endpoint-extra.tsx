import { lazy, Suspense } from 'react';
import { type JsonObject, text } from '@/api/json';
import { CopyButton } from '@/ui/copy';
import { LinkButton } from '@/ui/link-button';
import { SubjectCharts } from '@/charts/subject-charts';
import { Section } from '@/ui/page';
import { Loading } from '@/ui/states';
import ui from '@/ui/ui.module.css';
import { DryRun } from './dry-run';
import { PolicyHealth } from './policy-health';

const RestrictByIp = lazy(() => import('./restrict-by-ip'));

/** Where the endpoint is reached and from where, and its live traffic. */
export default function EndpointExtra({ object }: { object: JsonObject }) {
  const url = text(object.public_url) || text(object.url);
  const filter = `ev.conn.server_name == ${JSON.stringify(text(object.host))}`;
  const web = /^https?:\/\//.test(url);
  return (
    <>
      {object.traffic_policy ? <PolicyHealth id={text(object.id)} /> : null}
      <Section
        title="Reach it"
        actions={
          <LinkButton
            size="xs"
            variant="default"
            to="/traffic"
            search={{ filter }}
          >
            Watch its traffic
          </LinkButton>
        }
      >
        <span className={ui.idline}>
          {web ? (
            <a href={url} target="_blank" rel="noreferrer noopener">
              {url}
            </a>
          ) : (
            <code>{url}</code>
          )}
          <CopyButton value={url} label="Copy the address" />
        </span>
      </Section>
      <Suspense fallback={<Loading />}>
        <RestrictByIp key={text(object.id)} object={object} isWeb={web} />
      </Suspense>
      <SubjectCharts subject="endpoint" id={text(object.id)} />
      {web ? (
        <DryRun
          key={text(object.id)}
          id={text(object.id)}
          policy={text(object.traffic_policy)}
        />
      ) : null}
    </>
  );
}
