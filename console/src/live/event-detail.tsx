import { Tabs } from '@mantine/core';
import { Link } from '@/routing/link';
import { type Json, type JsonObject, isObject, text } from '@/api/json';
import { eventTitle } from '@/api/words';
import { pathOf } from '@/resources/names';
import { Value } from '@/resources/value';
import { Breakable } from '@/ui/breakable';
import { CopyBlock, CopyButton } from '@/ui/copy';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import { Changes } from './changes';
import { Connection } from './connection';
import { Facts } from './event-facts';
import { isRequest } from './facts';
import { flat } from './flat';
import type { KeptEvent, LiveEvent } from './entry';
import { Messages, SendAgain } from './messages';
import { RestoreVersion } from './restore-version';

function quoted(value: string): string {
  return `'${value.replaceAll("'", String.raw`'\''`)}'`;
}

/** The request of an event as a line of curl. */
function curlOf(object: JsonObject): string | undefined {
  const request =
    isObject(object.http) && isObject(object.http.request)
      ? object.http.request
      : undefined;
  if (!request || !isObject(request.url)) return undefined;
  const headers = Object.entries(
    isObject(request.headers) ? request.headers : {},
  )
    .filter(
      ([name]) => !['Host', 'Content-Length', 'Connection'].includes(name),
    )
    .flatMap(([name, values]) =>
      (Array.isArray(values) ? values : []).map(
        (value) => `-H ${quoted(`${name}: ${text(value)}`)}`,
      ),
    );
  return [
    `curl -X ${text(request.method).toUpperCase()} ${quoted(text(request.url.raw))}`,
    ...headers,
  ].join(' \\\n  ');
}

/** A field of an event. The decision of an action that did not run is `invalid`, which alone reads like a fault. */
function FieldValue({ name, value }: { name: string; value: Json }) {
  return name.endsWith('.decision') && value === 'invalid' ? (
    <>
      <code>invalid</code> <span className={ui.dim}>(did not run)</span>
    </>
  ) : (
    <Value value={value} />
  );
}

interface Props {
  event: LiveEvent & Partial<KeptEvent>;
  /** Whether this is the event's own page, so that no link to it is needed. */
  isPage?: boolean;
}

export function EventDetail({ event, isPage = false }: Props) {
  const { n: _, endpoint, audit, ...whole } = event;
  const json = JSON.stringify(whole, null, 2);
  const id = text(event.object.id);
  const path = id ? pathOf(id) : undefined;
  const curl = curlOf(event.object);
  const isUpdate = event.event_type.includes('_updated');
  const isHttp = isRequest(event);
  return (
    <div className={ui.stack}>
      <div>
        <strong>{eventTitle(event.event_type)}</strong>{' '}
        <code>{event.event_type}</code>
        <div className={ui.dim}>
          <Time value={event.event_timestamp} />
        </div>
        <span className={ui.idline}>
          <code>{event.event_id}</code>
          <CopyButton value={event.event_id} label="Copy the event id" />
        </span>
        {isPage ? null : (
          <div>
            <Link to="/events/$id" params={{ id: event.event_id }}>
              Open as a page
            </Link>
          </div>
        )}
      </div>
      <Facts event={event} />
      {endpoint ? (
        <Link to={pathOf(endpoint) ?? '/endpoints'}>Open the endpoint</Link>
      ) : null}
      {audit ? (
        <dl className={ui.pairs} aria-label="Place in the audit log">
          <dt>position</dt>
          <dd>{text(audit.position)}</dd>
          <dt>hash</dt>
          <dd>
            <code>{text(audit.hash)}</code>
          </dd>
        </dl>
      ) : null}
      {path && !event.event_type.includes('_deleted') ? (
        <Link to={path}>Open the object</Link>
      ) : null}
      <RestoreVersion event={event} />
      <Tabs defaultValue={isUpdate ? 'changes' : 'fields'} keepMounted={false}>
        <Tabs.List aria-label="Views of the event">
          {isUpdate ? <Tabs.Tab value="changes">Changes</Tabs.Tab> : null}
          <Tabs.Tab value="fields">Fields</Tabs.Tab>
          <Tabs.Tab value="json">As delivered</Tabs.Tab>
          {curl ? <Tabs.Tab value="curl">As curl</Tabs.Tab> : null}
          {isHttp ? <Tabs.Tab value="messages">Bodies</Tabs.Tab> : null}
          {isHttp ? <Tabs.Tab value="connection">Connection</Tabs.Tab> : null}
          {isHttp ? <Tabs.Tab value="again">Send again</Tabs.Tab> : null}
        </Tabs.List>
        {isUpdate ? (
          <Tabs.Panel value="changes" pt="sm">
            <Changes event={event} />
          </Tabs.Panel>
        ) : null}
        <Tabs.Panel value="fields" pt="sm">
          <dl className={ui.pairs}>
            {[
              ...flat(event.principal ?? {}, 'principal'),
              ...flat(event.object, ''),
            ].map(([name, value]) => [
              <dt key={`${name} name`}>
                <Breakable text={name} />
              </dt>,
              <dd key={name}>
                <FieldValue name={name} value={value} />
              </dd>,
            ])}
          </dl>
        </Tabs.Panel>
        <Tabs.Panel value="json" pt="sm">
          <CopyBlock value={json} label="the event" />
        </Tabs.Panel>
        {isHttp ? (
          <Tabs.Panel value="connection" pt="sm">
            <Connection event={event} />
          </Tabs.Panel>
        ) : null}
        {isHttp ? (
          <Tabs.Panel value="messages" pt="sm">
            <Messages id={event.event_id} />
          </Tabs.Panel>
        ) : null}
        {isHttp ? (
          <Tabs.Panel value="again" pt="sm">
            <SendAgain id={event.event_id} object={event.object} />
          </Tabs.Panel>
        ) : null}
        {curl ? (
          <Tabs.Panel value="curl" pt="sm">
            <CopyBlock value={curl} label="the curl command" />
          </Tabs.Panel>
        ) : null}
      </Tabs>
    </div>
  );
}
