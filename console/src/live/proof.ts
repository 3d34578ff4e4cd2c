import { API_PREFIX, consoleFetch, errorOf } from '@/api/http';
import { elementsOf, membersOf } from './raw-json';

/** A position of the log and its hash, as `culvert audit verify` writes and takes it: `1204:6354e0ec…`. */
export interface Head {
  position: number;
  hash: string;
}

export function headOf(text: string): Head | undefined {
  const [, position, hash] =
    /^\s*(\d{1,15}):([0-9a-f]{64})\s*$/.exec(text) ?? [];
  return position && hash ? { position: Number(position), hash } : undefined;
}

export interface Proof {
  /** Events that were checked. */
  checked: number;
  first: number | undefined;
  head: Head | undefined;
  /** The first fault, and where it is. */
  fault: { position: number; what: string } | undefined;
  /** Positions whose events the person may not read. */
  hidden: number;
  /** Events that a server without a chain wrote, which have no hash yet. */
  unchained: number;
  /** Whether everything was read. */
  isDone: boolean;
  /** Whether the recorded head was found; `pruned` if its event was deleted for its age. */
  recorded: 'none' | 'found' | 'pruned';
}

interface Entry {
  position: number;
  hash: string | undefined;
  previous: string | undefined;
  content: Uint8Array<ArrayBuffer>;
  line: string;
}

const LIMIT = 100;
const ZEROS = '0'.repeat(64);
const encoder = new TextEncoder();

function number(n: bigint): Uint8Array {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigInt64(0, n);
  return bytes;
}

function bytesOfHash(hash: string): Uint8Array {
  return Uint8Array.from(hash.match(/../g) ?? [], (pair) =>
    Number.parseInt(pair, 16),
  );
}

function joined(parts: Uint8Array[]): Uint8Array<ArrayBuffer> {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

const plain = (text: string | undefined): string =>
  text === undefined ? '' : ((JSON.parse(text) as string | null) ?? '');

/** An entry of the log, with the bytes that its hash covers. */
function entryOf(text: string): Entry | undefined {
  const logged = membersOf(text);
  const audit = logged.get('audit');
  const event = logged.get('event');
  if (!audit || audit === 'null' || !event) return undefined;
  const place = membersOf(audit);
  const fields = membersOf(event);
  const position = place.get('position') ?? '0';
  const audience = place.get('audience') ?? '';
  const time = place.get('happened_at_ns') ?? '0';
  const previous = plain(place.get('previous_hash')) || undefined;
  const hash = plain(place.get('hash')) || undefined;
  const string = (value: string) => {
    const bytes = encoder.encode(value);
    return [number(BigInt(bytes.length)), bytes];
  };
  const content = joined([
    bytesOfHash(previous ?? ZEROS),
    number(BigInt(position)),
    ...['event_id', 'account_id', 'event_type'].flatMap((name) =>
      string(plain(fields.get(name))),
    ),
    number(BigInt(time)),
    ...string(audience),
    ...string(event),
  ]);
  // The form of `culvert audit export`.
  const line = `{"seq":${position},"hash":${place.get('hash') ?? 'null'},"previous":${place.get('previous_hash') ?? 'null'},"happened_at_ns":${time},"audience":${audience},"event":${event}}\n`;
  return { position: Number(position), hash, previous, content, line };
}

async function hashOf(content: Uint8Array<ArrayBuffer>): Promise<string> {
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', content));
  return [...digest].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

interface Page {
  entries: Entry[];
  next: string | undefined;
  hidesTypes: boolean;
}

async function pageAfter(
  cursor: string | undefined,
  signal: AbortSignal,
): Promise<Page> {
  const query = new URLSearchParams({
    type: 'audit',
    order: 'oldest',
    limit: String(LIMIT),
  });
  if (cursor) query.set('cursor', cursor);
  let response = await consoleFetch(`${API_PREFIX}/events?${query}`, {
    signal,
  });
  while (response.status === 429) {
    const seconds = Number(response.headers.get('retry-after')) || 1;
    await new Promise((resolve) => {
      setTimeout(resolve, seconds * 1000);
    });
    signal.throwIfAborted();
    response = await consoleFetch(`${API_PREFIX}/events?${query}`, { signal });
  }
  if (!response.ok) throw await errorOf(response);
  const text = await response.text();
  const whole = JSON.parse(text) as {
    next_page_uri: string | null;
    withheld_types?: string[];
  };
  const next = whole.next_page_uri
    ? (new URL(whole.next_page_uri, location.origin).searchParams.get(
        'cursor',
      ) ?? undefined)
    : undefined;
  const entries = elementsOf(membersOf(text).get('events') ?? '[]').flatMap(
    (one) => entryOf(one) ?? [],
  );
  return { entries, next, hidesTypes: (whole.withheld_types ?? []).length > 0 };
}

interface Options {
  signal: AbortSignal;
  /** A head that was recorded before; the log must contain it. */
  recorded?: Head | undefined;
  onProgress: (proof: Proof) => void;
  /** Takes the lines of an export. */
  onLines?: (lines: string[]) => void;
}

/**
 * Reads the whole audit log, the oldest event first, and computes each hash again. The log is complete if positions have
 * no gaps, each event names the hash of the one before it, and each hash is that of its content.
 */
export async function prove({
  signal,
  recorded,
  onProgress,
  onLines,
}: Options): Promise<Proof> {
  const proof: Proof = {
    checked: 0,
    first: undefined,
    head: undefined,
    fault: undefined,
    hidden: 0,
    unchained: 0,
    isDone: false,
    recorded: 'none',
  };
  let cursor: string | undefined;
  let before: Entry | undefined;
  const fail = (position: number, what: string) => {
    proof.fault ??= { position, what };
  };
  do {
    // Each page depends on the one before.
    const page = await pageAfter(cursor, signal);
    for (const entry of page.entries) {
      const { position, previous } = entry;
      proof.first ??= position;
      const expected = before ? before.position + 1 : position;
      if (position !== expected) {
        if (page.hidesTypes && position > expected)
          proof.hidden += position - expected;
        else
          fail(
            expected,
            position > expected
              ? `Position ${expected} is missing.`
              : `Position ${position} is there twice.`,
          );
      } else if (before?.hash && previous !== before.hash)
        fail(
          position,
          `Position ${position} names another hash for the event before it.`,
        );
      if (!before && position === 1 && previous && previous !== ZEROS)
        fail(1, 'Position 1 names an event before it.');
      if (entry.hash === undefined) proof.unchained += 1;
      else if ((await hashOf(entry.content)) !== entry.hash)
        fail(
          position,
          `Position ${position} was changed: its hash is not that of its content.`,
        );
      if (entry.hash) proof.head = { position, hash: entry.hash };
      if (
        recorded &&
        (position === recorded.position
          ? entry.hash === recorded.hash
          : position === recorded.position + 1 && previous === recorded.hash)
      )
        proof.recorded = 'found';
      proof.checked += 1;
      before = entry;
    }
    onLines?.(page.entries.map(({ line }) => line));
    onProgress({ ...proof });
    cursor = page.next;
  } while (cursor);
  if (recorded && proof.recorded === 'none') {
    const last = before?.position ?? 0;
    if (recorded.position > last)
      fail(
        recorded.position,
        `The log ends at position ${last}: the recorded position ${recorded.position} is gone.`,
      );
    else if (recorded.position + 1 < (proof.first ?? 0))
      proof.recorded = 'pruned';
    else
      fail(
        recorded.position,
        `Position ${recorded.position} does not have the recorded hash: the log was regenerated.`,
      );
  }
  proof.isDone = true;
  onProgress({ ...proof });
  return proof;
}
