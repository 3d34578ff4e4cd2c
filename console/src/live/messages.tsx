import { Textarea, TextInput } from '@mantine/core';
import { useMutation, useQuery } from '@tanstack/react-query';
import { Link } from '@/routing/link';
import { type FormEvent, useState } from 'react';
import { call } from '@/api/http';
import { type JsonObject, isObject, text } from '@/api/json';
import { type Field, type Message, MessageView } from '@/inspect/message-view';
import { Button } from '@/ui/button';
import { Choice } from '@/ui/choice';
import { CopyButton } from '@/ui/copy';
import { Empty, Failure, Loading } from '@/ui/states';
import ui from '@/ui/ui.module.css';

export interface CapturedRequest extends Message {
  method: string;
  url: string;
  url_redacted: boolean;
}

interface Captured {
  request: CapturedRequest | null;
  response: (Message & { status_code: number }) | null;
}

const CAPTURE = 'on_http_request:\n  - actions:\n      - type: capture';

export function useMessages(id: string) {
  return useQuery({
    queryKey: ['events', id, 'messages'],
    queryFn: async ({ signal }) =>
      (await call(
        'GET',
        `/events/${id}/messages`,
        undefined,
        signal,
      )) as unknown as Captured,
  });
}

/** The captured request and response of a traffic event. */
export function Messages({ id }: { id: string }) {
  const found = useMessages(id);
  if (found.isPending) return <Loading />;
  if (found.error)
    return <Failure error={found.error} retry={() => void found.refetch()} />;
  const { request, response } = found.data;
  if (!request && !response) {
    return (
      <Empty
        title="Nothing was captured"
        text="Bodies are stored only where the traffic policy of the endpoint captures them. Add this action to it:"
        action={<pre className={ui.long}>{CAPTURE}</pre>}
      />
    );
  }
  return (
    <div className={ui.stack}>
      {request ? (
        <MessageView
          label="Request"
          start={`${request.method} ${request.url}`}
          message={request}
        />
      ) : null}
      {response ? (
        <MessageView
          label="Response"
          start={String(response.status_code)}
          message={response}
        />
      ) : null}
    </div>
  );
}

/** Header fields, one in each line, as a person edits them. */
function lines(fields: { name: string; value: string }[]): string {
  return fields.map(({ name, value }) => `${name}: ${value}`).join('\n');
}

function parse(source: string): { name: string; value: string }[] {
  return source
    .split('\n')
    .filter((line) => line.trim() !== '')
    .map((line) => {
      const at = line.indexOf(':');
      return at < 0
        ? { name: line.trim(), value: '' }
        : { name: line.slice(0, at).trim(), value: line.slice(at + 1).trim() };
    });
}

/** Fields that the server sets, whatever is sent. */
const OWN = new Set([
  'host',
  'content-length',
  'connection',
  'culvert-replay-of',
  'expect',
  'transfer-encoding',
]);

function editable(fields: Field[]): { name: string; value: string }[] {
  return fields.filter(
    ({ name, redacted }) => !redacted && !OWN.has(name.toLowerCase()),
  );
}

/** The fields of an event, whose values are in lower case and without credentials. */
function fieldsOf(object: JsonObject): Field[] {
  const request =
    isObject(object.http) && isObject(object.http.request)
      ? object.http.request
      : {};
  return Object.entries(
    isObject(request.headers) ? request.headers : {},
  ).flatMap(([name, values]) =>
    (Array.isArray(values) ? values : []).map((value) => ({
      name,
      value: text(value),
      redacted: text(value).includes('[redacted]'),
    })),
  );
}

interface Draft {
  method: string;
  path: string;
  headers: string;
  body: string;
}

function draftOf(object: JsonObject, captured: CapturedRequest | null): Draft {
  const request =
    isObject(object.http) && isObject(object.http.request)
      ? object.http.request
      : {};
  const url =
    captured?.url ?? text(isObject(request.url) ? request.url.raw : '');
  const path = /^[a-z]+:\/\/[^/?]*(.*)$/.exec(url)?.[1] ?? '/';
  const fields = editable(captured?.headers ?? fieldsOf(object));
  const isText =
    captured?.body.text !== null && captured?.body.text !== undefined;
  return {
    method: captured?.method ?? text(request.method).toUpperCase(),
    path: path.startsWith('/') ? path : `/${path}`,
    // The text is shown without its coding, so it is sent without it.
    headers: lines(
      isText
        ? fields.filter(({ name }) => name.toLowerCase() !== 'content-encoding')
        : fields,
    ),
    body: captured?.body.text ?? '',
  };
}

interface Replayed {
  event_id: string | null;
  status_code: number | null;
}

/** What came of a request that was sent again. */
function Result({ result }: { result: Replayed }) {
  return (
    <div className={ui.once} role="status">
      <p>
        {result.status_code === null
          ? 'The connection was closed without a response.'
          : `The response has the status ${result.status_code}.`}
      </p>
      {result.event_id ? (
        <span className={ui.idline}>
          New event{' '}
          <Link to="/events/$id" params={{ id: result.event_id }}>
            <code>{result.event_id}</code>
          </Link>
          <CopyButton
            value={result.event_id}
            label="Copy the id of the new event"
          />
        </span>
      ) : null}
    </div>
  );
}

/** Sends the request of an event to its endpoint again, as it was or with changes. */
export function SendAgain({ id, object }: { id: string; object: JsonObject }) {
  const found = useMessages(id);
  if (found.isPending) return <Loading />;
  // Without the right to read it, the request can still be sent if the server allows that.
  return (
    <SendForm id={id} object={object} captured={found.data?.request ?? null} />
  );
}

const WHERE = [
  { value: 'edge', label: 'Through the policy' },
  { value: 'upstream', label: 'Directly to the upstream' },
];

function SendForm({
  id,
  object,
  captured,
}: {
  id: string;
  object: JsonObject;
  captured: CapturedRequest | null;
}) {
  const [to, setTo] = useState('edge');
  const [original] = useState(() => draftOf(object, captured));
  const [draft, setDraft] = useState<Draft>();
  const send = useMutation({
    mutationFn: async (edited: Draft | undefined) => {
      const body: JsonObject = { to };
      if (edited) {
        Object.assign(body, {
          method: edited.method,
          path: edited.path,
          headers: parse(edited.headers),
        });
        // An unchanged body that is no text is taken from the capture.
        if (edited.body !== original.body || (captured?.body.text ?? '') !== '')
          body.body = { text: edited.body };
      }
      return (await call(
        'POST',
        `/events/${id}/replay`,
        body,
      )) as unknown as Replayed;
    },
  });
  const set = (change: Partial<Draft>) =>
    setDraft((now) => ({ ...(now ?? original), ...change }));
  const submit = (event: FormEvent) => {
    event.preventDefault();
    send.mutate(draft);
  };
  return (
    <form className={ui.stack} onSubmit={submit} aria-label="Send again">
      <p className={ui.hint}>
        {captured
          ? 'The request is sent as it was captured, without redacted fields.'
          : 'The request was not captured: header values are in lower case, and the body is unknown.'}
      </p>
      <Choice label="Where to" value={to} onChange={setTo} options={WHERE} />
      {draft ? (
        <>
          <div className={ui.row}>
            <TextInput
              label="Method"
              value={draft.method}
              onChange={(event) => set({ method: event.currentTarget.value })}
            />
            <TextInput
              label="Path"
              value={draft.path}
              onChange={(event) => set({ path: event.currentTarget.value })}
            />
          </div>
          <Textarea
            label="Header fields, one in each line"
            autosize
            minRows={2}
            maxRows={12}
            value={draft.headers}
            onChange={(event) => set({ headers: event.currentTarget.value })}
          />
          <Textarea
            label="Body"
            autosize
            minRows={3}
            maxRows={16}
            value={draft.body}
            onChange={(event) => set({ body: event.currentTarget.value })}
          />
        </>
      ) : null}
      <div className={ui.actions}>
        <Button type="submit" loading={send.isPending}>
          {draft ? 'Send the changed request' : 'Send again'}
        </Button>
        <Button
          variant="default"
          onClick={() => setDraft(draft ? undefined : original)}
        >
          {draft ? 'Discard changes' : 'Edit first'}
        </Button>
      </div>
      {send.error ? <Failure error={send.error} /> : null}
      {send.data ? <Result result={send.data} /> : null}
    </form>
  );
}
