import { useEffect, useMemo, useState } from 'react';
import { Button, ButtonAnchor } from '@/ui/button';
import { CopyButton } from '@/ui/copy';
import ui from '@/ui/ui.module.css';
import {
  bytesOf,
  field,
  type Message,
  prettyJson,
  size,
  textOf,
} from './exchange';
import css from './inspect.module.css';

/** The URL of bytes while a component shows them. */
function useObjectUrl(
  bytes: Uint8Array<ArrayBuffer>,
  type: string,
): string | undefined {
  const [url, setUrl] = useState<string>();
  useEffect(() => {
    const made = URL.createObjectURL(new Blob([bytes], { type }));
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [bytes, type]);
  return url;
}

const hex = (bytes: Uint8Array) =>
  Array.from(
    { length: Math.ceil(Math.min(bytes.length, 512) / 16) },
    (_, row) => {
      const part = [...bytes.subarray(row * 16, row * 16 + 16)];
      const digits = part
        .map((byte) => byte.toString(16).padStart(2, '0'))
        .join(' ');
      const text = part
        .map((byte) =>
          byte > 31 && byte < 127 ? String.fromCharCode(byte) : '.',
        )
        .join('');
      return `${(row * 16).toString(16).padStart(4, '0')}  ${digits.padEnd(47)}  ${text}`;
    },
  ).join('\n');

function Picture({
  bytes,
  type,
  name,
}: {
  bytes: Uint8Array<ArrayBuffer>;
  type: string;
  name: string;
}) {
  const url = useObjectUrl(bytes, type);
  return url ? (
    <img
      className={css.picture}
      src={url}
      alt={`The ${name} body as a picture`}
    />
  ) : null;
}

function Download({ bytes }: { bytes: Uint8Array<ArrayBuffer> }) {
  const url = useObjectUrl(bytes, 'application/octet-stream');
  return url ? (
    <ButtonAnchor href={url} download="body" variant="default" size="xs">
      Download
    </ButtonAnchor>
  ) : null;
}

/** A body: as a picture, as JSON with line breaks, as text, or as bytes. */
export function Body({ message, name }: { message: Message; name: string }) {
  const [isRaw, setRaw] = useState(false);
  const type = field(message, 'content-type');
  const bytes = useMemo(() => bytesOf(message.body), [message.body]);
  if (message.body_bytes === 0) return <p className={ui.dim}>No body</p>;
  const isPicture =
    /^image\//i.test(type) && message.is_whole && !message.problem;
  const text =
    isPicture && !type.includes('svg') ? undefined : textOf(bytes, type);
  const pretty = text === undefined ? undefined : prettyJson(text);
  const shown = text === undefined ? hex(bytes) : (!isRaw && pretty) || text;
  const notes = [
    message.is_whole
      ? ''
      : `Recorded: ${size(bytes.length)} of ${size(message.body_bytes)}.`,
    message.is_decoded
      ? `Decoded from ${field(message, 'content-encoding')}.`
      : '',
    message.problem ? `Not decoded: ${message.problem}.` : '',
  ].filter(Boolean);
  return (
    <div className={ui.stack}>
      <div className={css.bar}>
        <span className={ui.dim}>
          {[type || 'no content type', size(bytes.length), ...notes].join(
            ' · ',
          )}
        </span>
        <span className={css.tools}>
          {pretty || isPicture ? (
            <Button
              variant="default"
              size="xs"
              aria-pressed={isRaw}
              onClick={() => setRaw(!isRaw)}
            >
              Raw
            </Button>
          ) : null}
          <Download bytes={bytes} />
          {text === undefined ? null : (
            <CopyButton value={shown} label={`Copy the ${name} body`} />
          )}
        </span>
      </div>
      {isPicture && !isRaw ? (
        <Picture bytes={bytes} type={type} name={name} />
      ) : (
        <pre
          className={ui.long}
          tabIndex={0}
          role="group"
          aria-label={`Body of the ${name}`}
        >
          {shown}
        </pre>
      )}
    </div>
  );
}
