import { TextInput } from '@mantine/core';
import { useEffect, useState } from 'react';
import { Detail } from '@/inspect/detail';
import type { Exchange } from '@/inspect/exchange';
import { RequestList } from '@/inspect/list';
import type { Edited } from '@/inspect/replay-form';
import { searched } from '@/inspect/words';
import { useScheme } from '@/theme/scheme';
import { Button, IconButton } from '@/ui/button';
import { Icon } from '@/ui/icons';
import { Tag } from '@/ui/page';
import { announce } from '@/ui/toast';
import ui from '@/ui/ui.module.css';
import { api, type State } from './api';
import css from './agent.module.css';
import { useStateOfAgent } from './use-state-of-agent';

const PATH = '/inspect/http';
const idOf = (path: string) => Number(path.slice(PATH.length + 1)) || undefined;

/** The request that the URL names. */
function useSelected(): [number | undefined, (id: number | undefined) => void] {
  const [id, setId] = useState(idOf(location.pathname));
  useEffect(() => {
    const follow = () => setId(idOf(location.pathname));
    addEventListener('popstate', follow);
    return () => removeEventListener('popstate', follow);
  }, []);
  const select = (next: number | undefined) => {
    history.pushState(null, '', next ? `${PATH}/${next}` : PATH);
    setId(next);
  };
  return [id, select];
}

function Head({
  state,
  isLost,
}: {
  state: State | undefined;
  isLost: boolean;
}) {
  const { isDark, label, toggle } = useScheme();
  const status = isLost ? 'not running' : (state?.agent.status ?? 'connecting');
  return (
    <header className={ui.pageHead}>
      <div>
        <h1>
          culvert agent{' '}
          <Tag tone={status === 'online' ? 'ok' : isLost ? 'bad' : 'warn'}>
            {status}
          </Tag>
        </h1>
        {state ? (
          <p className={ui.dim}>
            {[
              state.server,
              state.agent.session.account,
              state.agent.session.region,
              `version ${state.agent.agent_version}`,
            ]
              .filter(Boolean)
              .join(' · ')}
            {state.agent.session.latency_ms === null
              ? ''
              : ` · ${state.agent.session.latency_ms.toFixed(0)} ms`}
          </p>
        ) : null}
        {state?.trouble ? <p role="status">{state.trouble}</p> : null}
        {state?.notices.map((notice) => (
          <p key={notice} role="status">
            {notice}
          </p>
        ))}
        {isLost ? (
          <p role="alert">
            The agent does not answer. The page continues when it runs again.
          </p>
        ) : null}
      </div>
      <IconButton
        variant="default"
        aria-label={label}
        title={label}
        onClick={toggle}
      >
        <Icon name={isDark ? 'sun' : 'moon'} />
      </IconButton>
    </header>
  );
}

function Endpoints({ state }: { state: State }) {
  if (!state.tunnels.length) return null;
  return (
    <ul className={css.endpoints} aria-label="Endpoints">
      {state.tunnels.map((it) => (
        <li key={it.name}>
          {/^https?:/.test(it.public_url) ? (
            <a href={it.public_url} target="_blank" rel="noreferrer">
              {it.public_url}
            </a>
          ) : (
            it.public_url
          )}
          <span className={ui.dim}> → {it.config.addr}</span>
        </li>
      ))}
    </ul>
  );
}

/** The exchange with this id. An agent keeps the newest requests only. */
function useExchange(id: number | undefined, run: string | undefined) {
  const [exchange, setExchange] = useState<Exchange>();
  const [problem, setProblem] = useState('');
  useEffect(() => {
    let isOver = false;
    setExchange(undefined);
    setProblem('');
    if (id) {
      api.exchange(id).then(
        (found) => {
          if (!isOver) setExchange(found);
        },
        (error: Error) => {
          if (!isOver) setProblem(error.message);
        },
      );
    }
    return () => {
      isOver = true;
    };
  }, [id, run]);
  return { exchange, problem };
}

export function AgentPage() {
  const { state, isLost, read } = useStateOfAgent();
  const [selected, select] = useSelected();
  const [filter, setFilter] = useState('');
  const { exchange, problem } = useExchange(selected, state?.run);
  const requests = state?.requests.filter(searched(filter)) ?? [];
  const clear = () =>
    api
      .clear()
      .then(() => select(undefined))
      .then(read);
  const replay = async (edited: Edited | undefined) => {
    if (!exchange) return;
    try {
      const { id } = await api.replay(exchange.id, edited);
      await read();
      select(id);
      announce('The response arrived.');
    } catch (error) {
      await read();
      announce((error as Error).message);
    }
  };
  return (
    <main className={ui.page}>
      <Head state={state} isLost={isLost} />
      {state ? <Endpoints state={state} /> : null}
      <div className={ui.toolbar}>
        <TextInput
          className={ui.grow ?? ''}
          label="Filter"
          placeholder="Plain words: 502 /checkout >500ms"
          value={filter}
          onChange={(event) => setFilter(event.currentTarget.value)}
        />
        <Button
          variant="default"
          disabled={!state?.requests.length}
          onClick={() => void clear()}
        >
          Clear
        </Button>
      </div>
      {state?.not_kept ? (
        <p className={ui.hint}>
          Showing {state.requests.length} of {state.seen} requests.{' '}
          {state.not_kept} requests were not kept, because the limit is{' '}
          {state.kept_per_second} per second.
        </p>
      ) : null}
      <div className={css.columns} data-detail={selected ? true : undefined}>
        <section aria-label="List of requests" className={css.requests}>
          {requests.length ? (
            <RequestList
              requests={requests}
              selected={selected}
              onSelect={select}
            />
          ) : null}
          {state && !requests.length ? (
            <div className={ui.empty}>
              <h2>
                {state.requests.length
                  ? 'No request matches the filter'
                  : 'No requests yet'}
              </h2>
              {state.requests.length ? null : (
                <p>Requests to your endpoints appear here.</p>
              )}
            </div>
          ) : null}
        </section>
        {selected ? (
          <section aria-label="Request" className={css.selected}>
            <Button
              className={css.back ?? ''}
              variant="subtle"
              size="xs"
              onClick={() => select(undefined)}
            >
              All requests
            </Button>
            {exchange ? <Detail exchange={exchange} onReplay={replay} /> : null}
            {problem ? (
              <div className={ui.failure} role="alert">
                <h2>The request is not there</h2>
                <p>{problem}</p>
              </div>
            ) : null}
          </section>
        ) : null}
      </div>
    </main>
  );
}
