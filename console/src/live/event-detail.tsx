import { Tabs } from '@mantine/core';
import { Link } from '@tanstack/react-router';
import { type Json, type JsonObject, isObject, refId, text } from '@/api/json';
import { eventTitle } from '@/api/words';
import { pathOf } from '@/resources/names';
import { Value } from '@/resources/value';
import { CopyBlock, CopyButton } from '@/ui/copy';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import type { KeptEvent } from './kept';
import { Messages, SendAgain } from './messages';
import type { LiveEvent } from './tail';

function quoted(value: string): string {
  return `'${value.replaceAll("'", String.raw`'\''`)}'`;
}

/** The fields under the names that filters and subscriptions use, without those that are null. */
function flat(object: JsonObject, prefix: string): [string, Json][] {
  return Object.entries(object).flatMap(([key, value]): [string, Json][] => {
    const name = prefix ? `${prefix}.${key}` : key;
    if (value === null) return [];
    return isObject(value) && !refId(value) ? flat(value, name) : [[name, value]];
  });
}

/** The request of an event as a line of curl. */
function curlOf(object: JsonObject): string | undefined {
  const request = isObject(object.http) && isObject(object.http.request) ? object.http.request : undefined;
  if (!request || !isObject(request.url)) return undefined;
  const headers = Object.entries(isObject(request.headers) ? request.headers : {})
    .filter(([name]) => !['Host', 'Content-Length', 'Connection'].includes(name))
    .flatMap(([name, values]) => (Array.isArray(values) ? values : []).map((value) => `-H ${quoted(`${name}: ${text(value)}`)}`));
  return [`curl -X ${text(request.method).toUpperCase()} ${quoted(text(request.url.raw))}`, ...headers].join(' \\\n  ');
}

export function EventDetail({ event }: { event: LiveEvent & Partial<KeptEvent> }) {
  const { n: _, endpoint, audit, ...whole } = event;
  const json = JSON.stringify(whole, null, 2);
  const id = text(event.object.id);
  const path = id ? pathOf(id) : undefined;
  const curl = curlOf(event.object);
  const isRequest = event.event_type.startsWith('http_request_complete');
  return (
    <div className={ui.stack}>
      <div>
        <strong>{eventTitle(event.event_type)}</strong> <code>{event.event_type}</code>
        <div className={ui.dim}><Time value={event.event_timestamp} /></div>
        <span className={ui.idline}><code>{event.event_id}</code><CopyButton value={event.event_id} label="Copy the event id" /></span>
      </div>
      {endpoint ? <Link to={pathOf(endpoint) ?? '/endpoints'}>Open the endpoint</Link> : null}
      {audit ? (
        <dl className={ui.pairs} aria-label="Place in the audit log">
          <dt>position</dt><dd>{text(audit.position)}</dd>
          <dt>hash</dt><dd><code>{text(audit.hash)}</code></dd>
        </dl>
      ) : null}
      {path && !event.event_type.includes('_deleted') ? <Link to={path}>Open the object</Link> : null}
      <Tabs defaultValue="fields" keepMounted={false}>
        <Tabs.List aria-label="Views of the event">
          <Tabs.Tab value="fields">Fields</Tabs.Tab>
          <Tabs.Tab value="json">As delivered</Tabs.Tab>
          {curl ? <Tabs.Tab value="curl">As curl</Tabs.Tab> : null}
          {isRequest ? <Tabs.Tab value="messages">Bodies</Tabs.Tab> : null}
          {isRequest ? <Tabs.Tab value="again">Send again</Tabs.Tab> : null}
        </Tabs.List>
        <Tabs.Panel value="fields" pt="sm">
          <dl className={ui.pairs}>
            {[...flat(event.principal ?? {}, 'principal'), ...flat(event.object, '')].map(([name, value]) => [
              <dt key={`${name} name`}>{name}</dt>, <dd key={name}><Value value={value} /></dd>,
            ])}
          </dl>
        </Tabs.Panel>
        <Tabs.Panel value="json" pt="sm"><CopyBlock value={json} label="the event" /></Tabs.Panel>
        {isRequest ? <Tabs.Panel value="messages" pt="sm"><Messages id={event.event_id} /></Tabs.Panel> : null}
        {isRequest ? <Tabs.Panel value="again" pt="sm"><SendAgain id={event.event_id} object={event.object} /></Tabs.Panel> : null}
        {curl ? <Tabs.Panel value="curl" pt="sm"><CopyBlock value={curl} label="the curl command" /></Tabs.Panel> : null}
      </Tabs>
    </div>
  );
}
