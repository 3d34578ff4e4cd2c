import type { ReactNode } from 'react';
import { type JsonObject, text } from '@/api/json';
import { show } from '@/charts/units';
import ui from '@/ui/ui.module.css';
import type { KeptEvent, LiveEvent } from './entry';
import { at, isRequest, reasonWords, wordOf } from './facts';
import { Narrowing } from './narrow';
import reasons from './reasons.json';
import css from './live.module.css';

const REASONS: Record<string, string> = reasons;
const TONES: Record<string, string> = { 2: 'ok', 4: 'warn', 5: 'bad' };

/** A request in one line: what was asked for, and what came of it. */
function RequestLine({ object }: { object: JsonObject }) {
  const status = text(at(object, 'http.response.status_code'));
  const tone = TONES[status[0] ?? ''] ?? 'quiet';
  const method = text(at(object, 'http.request.method'));
  return (
    <div className={ui.idline}>
      <span className={ui.tag} data-tone={tone}>
        {status ? (
          <Narrowing facet="status" word={status}>
            {status}
          </Narrowing>
        ) : (
          'no response'
        )}
      </span>
      <code>
        <Narrowing facet="method" word={`method:${method}`}>
          {method.toUpperCase()}
        </Narrowing>{' '}
        {text(at(object, 'http.request.url.raw'))}
      </code>
    </div>
  );
}

/** How long a request took, and which part of it took how long. */
function Duration({ object }: { object: JsonObject }) {
  const total = at(object, 'culvert.duration_ms');
  const first = at(object, 'culvert.first_byte_ms');
  const connect = at(object, 'culvert.connect_ms');
  if (typeof total !== 'number') return null;
  const ms = (value: number) => show(value, 'ms');
  const parts = [
    typeof connect === 'number' && connect > 0
      ? { name: 'connect', value: connect }
      : undefined,
    typeof first === 'number'
      ? {
          name: 'waiting',
          value: Math.max(first - (Number(connect) || 0), 0),
        }
      : undefined,
    typeof first === 'number'
      ? { name: 'response', value: Math.max(total - first, 0) }
      : undefined,
  ].filter((part) => part !== undefined);
  return (
    <>
      <strong>{ms(total)}</strong>
      {typeof first === 'number' ? `, first byte after ${ms(first)}` : ''}
      {typeof connect === 'number'
        ? `, connecting took ${ms(connect)}`
        : ', on an open connection'}
      {total > 0 && parts.length > 0 ? (
        <span className={css.parts} aria-hidden="true">
          {parts.map(({ name, value }) => (
            <span
              key={name}
              data-part={name}
              title={`${name}: ${ms(value)}`}
              style={{ flexGrow: value }}
            />
          ))}
        </span>
      ) : null}
    </>
  );
}

/** The ID that the client of a request was told. */
function requestId(object: JsonObject): string {
  const values = at(object, 'http.response.headers.Culvert-Request-Id');
  return Array.isArray(values) ? text(values[0]) : '';
}

/** What people look for first in an event of traffic. A click on a value narrows the search. */
export function Facts({ event }: { event: LiveEvent & Partial<KeptEvent> }) {
  const { object, endpoint, principal } = event;
  const value = (facet: string, word: string, shown: ReactNode = word) => (
    <Narrowing facet={facet} word={word}>
      {shown}
    </Narrowing>
  );
  const rows: [string, ReactNode][] = [];
  if (at(object, 'conn.client_ip') === undefined) {
    const actor = text(principal?.id);
    const id = text(object.id);
    const operation = text(at(principal ?? {}, 'context.operation_id'));
    if (actor)
      rows.push(['Who', value('by', actor, text(principal?.subject) || actor)]);
    if (id) rows.push(['Object', value('object', id)]);
    if (operation)
      rows.push([
        'Request ID',
        value('request', `request:${operation}`, operation),
      ]);
    rows.push([
      'Kind',
      value('type', `type:${event.event_type}`, event.event_type),
    ]);
  } else {
    const reason = text(at(object, 'culvert.reason'));
    const host = text(at(object, 'conn.server_name'));
    const path = text(at(object, 'http.request.url.path'));
    const upstream = text(at(object, 'culvert.upstream'));
    const trace = text(at(object, 'culvert.trace_id'));
    const attempts = Number(at(object, 'culvert.attempts') ?? 1);
    const id = requestId(object);
    const client = text(at(object, 'conn.client_ip'));
    if (reason)
      rows.push([
        'Cause',
        <>
          {value('reason', `reason:${reason}`, reasonWords(reason))}
          {REASONS[reason] ? `: ${REASONS[reason]}` : ''}
        </>,
      ]);
    if (isRequest(event))
      rows.push(['Duration', <Duration key="duration" object={object} />]);
    else
      rows.push([
        'Open for',
        show(Number(at(object, 'culvert.duration_ms') ?? 0), 'ms'),
      ]);
    if (upstream)
      rows.push([
        'Upstream',
        <>
          <code>{upstream}</code>
          {attempts > 1 ? `, after ${attempts} attempts` : ''}
        </>,
      ]);
    if (host) rows.push(['Host', value('host', wordOf('host', host), host)]);
    if (path) rows.push(['Path', value('path', wordOf('path', path), path)]);
    rows.push(['Client', value('ip', client)]);
    if (endpoint) rows.push(['Endpoint', value('object', endpoint)]);
    if (id)
      rows.push([
        'Request ID',
        <Narrowing
          key="request"
          facet="request"
          word={id}
          cel={`"Culvert-Request-Id" in ev.http.response.headers && ${JSON.stringify(id)} in ev.http.response.headers["Culvert-Request-Id"]`}
        >
          {id}
        </Narrowing>,
      ]);
    if (trace) rows.push(['Trace ID', value('trace', `trace:${trace}`, trace)]);
  }
  return (
    <>
      {isRequest(event) ? <RequestLine object={object} /> : null}
      <dl className={css.facts} aria-label="Summary">
        {rows.map(([name, shown]) => [
          <dt key={`${name} name`}>{name}</dt>,
          <dd key={name}>{shown}</dd>,
        ])}
      </dl>
    </>
  );
}
