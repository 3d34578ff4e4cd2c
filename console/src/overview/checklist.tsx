import { Link } from '@tanstack/react-router';
import { type JsonObject, text } from '@/api/json';
import { CopyBlock } from '@/ui/copy';
import { Icon } from '@/ui/icons';
import { Section } from '@/ui/page';
import ui from '@/ui/ui.module.css';
import css from './overview.module.css';

interface Props {
  endpoints: JsonObject[];
  agents: number;
  seen: boolean;
}

/** The way to the first request. It goes away when that has arrived. */
export function Checklist({ endpoints, agents, seen }: Props) {
  const first = endpoints[0];
  const url = text(first?.public_url);
  const local = url.includes('.localhost');
  const host = url.replace(/^\w+:\/\//, '').replace(/\/$/, '');
  const curl = !url ? '' : url.startsWith('https') && local ? `curl --cacert culvert-data/ca.pem --resolve ${host.includes(':') ? host : `${host}:443`}:127.0.0.1 ${url}/`
    : `curl${local ? ` --resolve ${host.includes(':') ? host : `${host}:80`}:127.0.0.1` : ''} ${url}/`;
  const steps = [
    {
      done: endpoints.length > 0,
      title: 'Give a service a public address',
      body: (
        <>
          <p>
            Start an agent beside the service (<Link to="/connect">connect an agent</Link>), or{' '}
            <Link to="/$collection/new" params={{ collection: 'endpoints' }} search={{}}>create an endpoint</Link> for a service that this server reaches by itself:
          </p>
          <CopyBlock value="culvert api endpoints create --url https://app.culvert.localhost --upstream-url http://127.0.0.1:3000" label="the command" />
        </>
      ),
    },
    {
      done: seen,
      title: 'Send the first request',
      body: url ? <CopyBlock value={curl} label="the command" /> : <p>The command appears here when there is an endpoint.</p>,
    },
  ];
  return (
    <Section title="First steps">
      <ol className={css.steps}>
        {steps.map(({ done, title, body }) => (
          <li key={title} data-done={done}>
            <span className={css.mark}>{done ? <Icon name="check" size={14} /> : null}</span>
            <div>
              <h3>{title}{done ? <span className="visually-hidden"> (done)</span> : null}</h3>
              {done ? null : body}
            </div>
          </li>
        ))}
      </ol>
      {agents > 0 ? <p className={ui.dim}>{agents === 1 ? 'One agent is' : `${agents} agents are`} online.</p> : null}
    </Section>
  );
}
