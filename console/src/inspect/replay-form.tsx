import { Textarea, TextInput } from '@mantine/core';
import { useState } from 'react';
import { Button } from '@/ui/button';
import ui from '@/ui/ui.module.css';
import { base64Of, bytesOf, type Exchange, field, textOf } from './exchange';

export interface Edited {
  method: string;
  path: string;
  fields: [string, string][];
  /** Base64. */
  body: string;
}

interface FormProps {
  exchange: Exchange;
  isBusy: boolean;
  onSend: (edited: Edited) => Promise<void>;
}

/** The request as a form. The length of the body is set when it is sent. */
export function ReplayForm({ exchange, isBusy, onSend }: FormProps) {
  const { request } = exchange;
  const framing = [
    'content-length',
    'transfer-encoding',
    ...(request.is_decoded ? ['content-encoding'] : []),
  ];
  const [method, setMethod] = useState(exchange.method);
  const [path, setPath] = useState(exchange.path);
  const [headers, setHeaders] = useState(
    request.fields
      .filter(([name]) => !framing.includes(name.toLowerCase()))
      .map(([name, value]) => `${name}: ${value}`)
      .join('\n'),
  );
  const bytes = bytesOf(request.body);
  const text = textOf(bytes, field(request, 'content-type'));
  const [body, setBody] = useState(text);
  const [wrong, setWrong] = useState('');
  const send = () => {
    const lines = headers.split('\n').filter((line) => line.trim());
    const bad = lines.find((line) => line.indexOf(':') < 1);
    if (bad) return setWrong(`"${bad}" is not a header: write Name: value`);
    setWrong('');
    const fields = lines.map((line): [string, string] => [
      line.slice(0, line.indexOf(':')).trim(),
      line.slice(line.indexOf(':') + 1).trim(),
    ]);
    const sent = body === text ? bytes : new TextEncoder().encode(body ?? '');
    return void onSend({
      method: method.trim(),
      path: path.trim(),
      fields,
      body: base64Of(sent),
    });
  };
  return (
    <form
      className={ui.fieldset}
      aria-label="Edit and replay"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <div className={ui.stack}>
        <TextInput
          label="Method"
          value={method}
          onChange={(event) => setMethod(event.currentTarget.value)}
          required
        />
        <TextInput
          label="Path"
          value={path}
          onChange={(event) => setPath(event.currentTarget.value)}
          required
        />
        <Textarea
          label="Headers"
          description="One per line: Name: value"
          rows={6}
          value={headers}
          error={wrong || undefined}
          onChange={(event) => setHeaders(event.currentTarget.value)}
        />
        {text === undefined ? (
          <p className={ui.hint}>
            The body is not text and is sent as recorded.
          </p>
        ) : (
          <Textarea
            label="Body"
            rows={8}
            value={body ?? ''}
            onChange={(event) => setBody(event.currentTarget.value)}
          />
        )}
        {request.is_whole ? null : (
          <p className={ui.hint}>
            The body is recorded only in part. Replace it before you send the
            request.
          </p>
        )}
        <div className={ui.actions}>
          <Button type="submit" size="xs" loading={isBusy}>
            Send
          </Button>
        </div>
      </div>
    </form>
  );
}
