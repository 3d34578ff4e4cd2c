import ui from '@/ui/ui.module.css';

/** A header field as captured. */
export interface Field {
  name: string;
  value: string;
  redacted: boolean;
}

/** A body as captured, and as readable text if it is text. */
export interface Body {
  /** Bytes that were transferred. */
  length: number;
  /** Base64. */
  data: string;
  text: string | null;
  /** Base64 without content coding, if it has one and is not text. */
  decoded: string | null;
  truncated: boolean;
  redacted: boolean;
  omitted: 'content_type' | 'memory' | 'redaction' | null;
}

export interface Message {
  headers: Field[];
  trailers: Field[];
  body: Body;
}

const OMITTED = {
  content_type: 'The body has a content type that is not captured.',
  memory: 'The body was not captured: the memory for captures was used up.',
  redaction:
    'The body was not stored: it could not be redacted, because it is incomplete or cannot be read.',
};
/** Types that browsers show without running anything in them. */
const IMAGES = new Set([
  'image/png',
  'image/jpeg',
  'image/gif',
  'image/webp',
  'image/avif',
  'image/bmp',
  'image/x-icon',
]);

export function mediaType(headers: Field[]): string {
  const field = headers.find(
    ({ name }) => name.toLowerCase() === 'content-type',
  );
  return (field?.value.split(';')[0] ?? '').trim().toLowerCase();
}

/** JSON with one member in each line; other text as it is. */
function readable(text: string, type: string): string {
  if (!/json/.test(type) && !/^\s*[[{]/.test(text)) return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function size(bytes: number): string {
  return bytes < 1024 ? `${bytes} bytes` : `${(bytes / 1024).toFixed(1)} KiB`;
}

function BodyView({
  label,
  body,
  type,
}: {
  label: string;
  body: Body;
  type: string;
}) {
  const notes = [
    body.omitted ? OMITTED[body.omitted] : '',
    body.truncated && !body.omitted ? 'The end is missing.' : '',
    body.redacted ? 'Parts are redacted.' : '',
  ].filter(Boolean);
  const bytes = body.decoded ?? body.data;
  return (
    <>
      <p className={ui.hint}>
        {[type || 'no content type', size(body.length), ...notes].join(' · ')}
      </p>
      {IMAGES.has(type) && bytes && !body.truncated ? (
        <img
          src={`data:${type};base64,${bytes}`}
          alt={`${label}, an image`}
          style={{ maxWidth: '100%', maxHeight: 320 }}
        />
      ) : null}
      {body.text ? (
        <pre className={ui.long} tabIndex={0} role="group" aria-label={label}>
          {readable(body.text, type)}
        </pre>
      ) : null}
      {body.text === null && bytes && !IMAGES.has(type) ? (
        <pre
          className={ui.long}
          tabIndex={0}
          role="group"
          aria-label={`${label} in base64`}
        >
          {bytes}
        </pre>
      ) : null}
    </>
  );
}

function Fields({ fields }: { fields: Field[] }) {
  return (
    <dl className={ui.pairs}>
      {fields.map(({ name, value }, n) => [
        <dt key={`${n} name`}>{name}</dt>,
        <dd key={n}>{value}</dd>,
      ])}
    </dl>
  );
}

/** A captured message: its first line, its body and its header fields. */
export function MessageView({
  label,
  start,
  message,
}: {
  label: string;
  start: string;
  message: Message;
}) {
  return (
    <section className={ui.stack} aria-label={label}>
      <div>
        <strong>{label}</strong>{' '}
        <code style={{ overflowWrap: 'anywhere' }}>{start}</code>
      </div>
      <div>
        <BodyView
          label={`Body of the ${label.toLowerCase()}`}
          body={message.body}
          type={mediaType(message.headers)}
        />
      </div>
      <details>
        <summary>{`Header fields (${message.headers.length})`}</summary>
        <Fields fields={message.headers} />
      </details>
      {message.trailers.length > 0 ? (
        <div>
          <span className={ui.label}>Trailers</span>
          <Fields fields={message.trailers} />
        </div>
      ) : null}
    </section>
  );
}
