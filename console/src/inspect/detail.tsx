import { Tabs } from '@mantine/core';
import { type ReactNode, useState } from 'react';
import { Button } from '@/ui/button';
import { CopyBlock } from '@/ui/copy';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import { Body } from './body';
import { curlOf, duration, type Exchange, type Message } from './exchange';
import css from './inspect.module.css';
import { type Edited, ReplayForm } from './replay-form';

function MessageView({ message, name }: { message: Message; name: string }) {
  return (
    <div className={ui.stack}>
      <Body message={message} name={name} />
      <div>
        <h3 className={css.title}>Headers</h3>
        <p>
          <code className={css.line}>{message.line}</code>
        </p>
        <dl className={ui.pairs} aria-label={`Headers of the ${name}`}>
          {message.fields.map(([field, value], index) => [
            <dt key={`${index} name`}>{field}</dt>,
            <dd key={index}>{value}</dd>,
          ])}
        </dl>
      </div>
    </div>
  );
}

interface DetailProps {
  exchange: Exchange;
  /** Sends the request again, with changes or as it was. */
  onReplay: (edited: Edited | undefined) => Promise<void>;
  above?: ReactNode;
}

/** A request with its response, and how to send it again. */
export function Detail({ exchange, onReplay, above }: DetailProps) {
  const [isEditing, setEditing] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const send = async (edited: Edited | undefined) => {
    setBusy(true);
    await onReplay(edited).finally(() => setBusy(false));
  };
  const { request, response, error } = exchange;
  return (
    <article className={css.detail} aria-label={`Request ${exchange.id}`}>
      {above}
      <h2 className={css.heading}>
        {exchange.method} {exchange.path}
      </h2>
      <p className={ui.dim}>
        {exchange.status ?? 'Canceled by the client'} ·{' '}
        {duration(exchange.took_ms)} ·{' '}
        <Time value={new Date(exchange.at).toISOString()} />
        {exchange.client ? ` · from ${exchange.client}` : ''} ·{' '}
        {exchange.tunnel}
        {exchange.replay_of ? ` · replay of request ${exchange.replay_of}` : ''}
      </p>
      {error ? (
        <div className={ui.failure} role="alert">
          <h3 className={css.title}>No complete response</h3>
          <p>{error}</p>
        </div>
      ) : null}
      <div className={ui.actions}>
        <Button size="xs" loading={isBusy} onClick={() => void send(undefined)}>
          Replay
        </Button>
        <Button
          size="xs"
          variant="default"
          aria-expanded={isEditing}
          onClick={() => setEditing(!isEditing)}
        >
          Edit and replay
        </Button>
      </div>
      {isEditing ? (
        <ReplayForm
          key={exchange.id}
          exchange={exchange}
          isBusy={isBusy}
          onSend={send}
        />
      ) : null}
      <Tabs
        key={`views ${exchange.id}`}
        defaultValue={response ? 'response' : 'request'}
        keepMounted={false}
      >
        <Tabs.List aria-label="Views of the request">
          <Tabs.Tab value="request">Request</Tabs.Tab>
          {response ? <Tabs.Tab value="response">Response</Tabs.Tab> : null}
          <Tabs.Tab value="curl">As curl</Tabs.Tab>
        </Tabs.List>
        <Tabs.Panel value="request" pt="sm">
          <MessageView message={request} name="request" />
        </Tabs.Panel>
        {response ? (
          <Tabs.Panel value="response" pt="sm">
            <MessageView message={response} name="response" />
          </Tabs.Panel>
        ) : null}
        <Tabs.Panel value="curl" pt="sm">
          <CopyBlock value={curlOf(exchange)} label="the curl command" />
        </Tabs.Panel>
      </Tabs>
    </article>
  );
}
