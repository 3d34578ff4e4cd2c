import { useMutation, useQueryClient } from '@tanstack/react-query';
import { Link } from '@/routing/link';
import { api, body } from '@/api/client';
import { type JsonObject, text } from '@/api/json';
import { Button } from '@/ui/button';
import { CopyBlock } from '@/ui/copy';
import { Icon } from '@/ui/icons';
import { Section } from '@/ui/page';
import { Failure } from '@/ui/states';
import ui from '@/ui/ui.module.css';
import css from './overview.module.css';

interface Props {
  endpoints: JsonObject[];
  agents: number;
  seen: boolean;
}

const SAMPLE =
  'on_http_request:\n  - actions:\n      - type: custom-response\n        config:\n          status_code: 200\n          headers: {content-type: text/plain}\n          body: "Hello from culvert."\n';

/** An endpoint that needs no service: its policy responds. */
function Sample() {
  const client = useQueryClient();
  const create = useMutation({
    mutationFn: async () =>
      body(
        await api.POST('/endpoints', {
          body: {
            url: 'http://',
            description: 'sample of the first steps',
            traffic_policy: SAMPLE,
          },
        }),
      ),
    onSuccess: () => client.invalidateQueries({ queryKey: ['endpoints'] }),
  });
  return (
    <>
      <p>
        Or try it without a service: this endpoint responds by its traffic
        policy.
      </p>
      <Button
        variant="default"
        size="xs"
        loading={create.isPending}
        onClick={() => create.mutate()}
      >
        Create a sample endpoint
      </Button>
      {create.error ? <Failure error={create.error} /> : null}
    </>
  );
}

/** The way to the first request. It goes away when that has arrived. */
export default function Checklist({ endpoints, agents, seen }: Props) {
  const first = endpoints[0];
  const url = text(first?.public_url);
  const local = url.includes('.localhost');
  const host = url.replace(/^\w+:\/\//, '').replace(/\/$/, '');
  const curl = !url
    ? ''
    : url.startsWith('https') && local
      ? `curl --cacert culvert-data/ca.pem --resolve ${host.includes(':') ? host : `${host}:443`}:127.0.0.1 ${url}/`
      : `curl${local ? ` --resolve ${host.includes(':') ? host : `${host}:80`}:127.0.0.1` : ''} ${url}/`;
  const steps = [
    {
      done: endpoints.length > 0,
      title: 'Give a service a public address',
      body: (
        <>
          <p>
            Start an agent beside the service (
            <Link to="/connect">connect an agent</Link>), or{' '}
            <Link
              to="/$collection/new"
              params={{ collection: 'endpoints' }}
              search={{}}
            >
              create an endpoint
            </Link>{' '}
            for a service that this server reaches by itself:
          </p>
          <CopyBlock
            value="culvert api endpoints create --url https://app.culvert.localhost --upstream-url http://127.0.0.1:3000"
            label="the command"
          />
          <Sample />
        </>
      ),
    },
    {
      done: seen,
      title: 'Send the first request',
      body: url ? (
        <>
          {/^https?:/.test(url) ? (
            <p>
              <a href={url} target="_blank" rel="noreferrer noopener">
                Open {url}
              </a>
              , or send it from a terminal:
            </p>
          ) : null}
          <CopyBlock value={curl} label="the command" />
        </>
      ) : (
        <p>The command appears here when there is an endpoint.</p>
      ),
    },
  ];
  return (
    <Section title="First steps">
      <ol className={css.steps}>
        {steps.map(({ done, title, body }) => (
          <li key={title} data-done={done}>
            <span className={css.mark}>
              {done ? <Icon name="check" size={14} /> : null}
            </span>
            <div>
              <h3>
                {title}
                {done ? <span className="visually-hidden"> (done)</span> : null}
              </h3>
              {done ? null : body}
            </div>
          </li>
        ))}
      </ol>
      {agents > 0 ? (
        <p className={ui.dim}>
          {agents === 1 ? 'One agent is' : `${agents} agents are`} online.
        </p>
      ) : null}
    </Section>
  );
}
