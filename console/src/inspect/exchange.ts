/** A recorded request and its response, as the pages that show them need it. */

export interface Summary {
  id: number;
  tunnel: string;
  url: string;
  client: string;
  /** Unix time in milliseconds. */
  at: number;
  took_ms: number;
  method: string;
  path: string;
  /** What the client got; null if it left before. */
  status: number | null;
  error: string | null;
  replay_of: number | null;
  request_bytes: number;
  response_bytes: number;
  response_type: string | null;
}

export interface Message {
  /** The request line or the status line. */
  line: string;
  fields: [string, string][];
  /** Base64, without chunk lines, and decoded if `is_decoded`. */
  body: string;
  is_decoded: boolean;
  /** Why the body is not decoded. */
  problem: string | null;
  body_bytes: number;
  is_whole: boolean;
}

export interface Exchange extends Summary {
  request: Message;
  response: Message | null;
}

export function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
}

export function base64Of(bytes: Uint8Array): string {
  let binary = '';
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary);
}

export function field(message: Message, name: string): string {
  return (
    message.fields.find(([known]) => known.toLowerCase() === name)?.[1] ?? ''
  );
}

/** The text of a body, or undefined if it is not text. */
export function textOf(bytes: Uint8Array, type: string): string | undefined {
  const charset = /charset="?([\w-]+)/i.exec(type)?.[1] ?? 'utf-8';
  try {
    const text = new TextDecoder(charset, { fatal: true }).decode(bytes);
    // Control characters that no text has.
    return /[\0-\x08\x0e-\x1a\x1c-\x1f]/.test(text) ? undefined : text;
  } catch {
    return undefined;
  }
}

/** JSON with line breaks, or undefined if it is not JSON. Numbers and strings stay as they are written. */
export function prettyJson(text: string): string | undefined {
  const start = text.trimStart()[0];
  if (start !== '{' && start !== '[') return undefined;
  try {
    JSON.parse(text);
  } catch {
    return undefined;
  }
  const tokens =
    text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  const lines: string[] = [];
  let depth = 0;
  tokens.forEach((token, index) => {
    const next = tokens[index + 1];
    if (token === '{' || token === '[') {
      if (next === '}' || next === ']') {
        lines.push(token);
        return;
      }
      depth += 1;
      lines.push(`${token}\n${'  '.repeat(depth)}`);
    } else if (token === '}' || token === ']') {
      const before = tokens[index - 1];
      if (before === '{' || before === '[') {
        lines.push(token);
        return;
      }
      depth -= 1;
      lines.push(`\n${'  '.repeat(depth)}${token}`);
    } else if (token === ',') {
      lines.push(`,\n${'  '.repeat(depth)}`);
    } else {
      lines.push(token === ':' ? ': ' : token);
    }
  });
  return lines.join('');
}

const quoted = (value: string) =>
  `'${value.replaceAll("'", String.raw`'\''`)}'`;

/** The request as a line of curl. */
export function curlOf(exchange: Exchange): string {
  const { request } = exchange;
  const fields = request.fields
    .filter(
      ([name]) =>
        ![
          'host',
          'content-length',
          'transfer-encoding',
          'connection',
          'content-encoding',
        ].includes(name.toLowerCase()),
    )
    .filter(([name]) => !name.toLowerCase().startsWith('x-forwarded-'))
    .map(([name, value]) => `-H ${quoted(`${name}: ${value}`)}`);
  const body = textOf(bytesOf(request.body), field(request, 'content-type'));
  if (body) fields.push(`--data-binary ${quoted(body)}`);
  return [
    `curl -X ${exchange.method} ${quoted(exchange.url + exchange.path)}`,
    ...fields,
  ].join(' \\\n  ');
}

export function size(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1024 * 1024) return `${(bytes / 1024).toFixed(1)} KiB`;
  return `${(bytes / 1024 / 1024).toFixed(1)} MiB`;
}

export function duration(ms: number): string {
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}
