import { type Json, type JsonObject, text } from '@/api/json';
import type { Operation } from '@/api/model';

function quote(value: string): string {
  return /^[\w./:@%+=-]+$/.test(value)
    ? value
    : `'${value.replaceAll("'", String.raw`'\''`)}'`;
}

function hasBody(operation: Operation): boolean {
  return operation.method !== 'GET' && operation.method !== 'DELETE';
}

/** The call as a line of curl. */
export function asCurl(
  operation: Operation,
  path: string,
  body: JsonObject,
): string {
  const lines = [
    `curl -X ${operation.method} ${quote(location.origin + path)}`,
    `-H "Authorization: Bearer $CULVERT_API_KEY"`,
  ];
  if (hasBody(operation))
    lines.push(
      `-H 'Content-Type: application/json'`,
      `-d ${quote(JSON.stringify(body))}`,
    );
  return lines.join(' \\\n  ');
}

const scalar = (value: Json) => typeof value !== 'object';

/** The call as a command of culvert. Lists and objects go into `--json`. */
export function asCommand(
  collection: string,
  operation: Operation,
  id: string | undefined,
  body: JsonObject,
): string {
  const words = ['culvert', 'api'];
  if (location.origin !== 'http://127.0.0.1:8420')
    words.push('--api-url', location.origin);
  words.push(collection, operation.command);
  if (id) words.push(id);
  if (hasBody(operation)) {
    const entries = Object.entries(body);
    const nested = entries.filter(([, value]) => !scalar(value));
    if (nested.length > 0)
      words.push('--json', quote(JSON.stringify(Object.fromEntries(nested))));
    for (const [key, value] of entries) {
      if (scalar(value))
        words.push(`--${key.replaceAll('_', '-')}`, quote(text(value)));
    }
  }
  return words.join(' ');
}
