import { ApiError } from '@/api/error';
import { API_PREFIX, consoleFetch, errorOf } from '@/api/http';
import type { JsonObject } from '@/api/json';
import { keptEvent, type LiveEvent } from './entry';
import { type Message, messages } from './sse';
import { viewer } from './viewer';

export interface TailOptions {
  types: string[];
  filter?: string | undefined;
  /** Of a stream of kept events: only those of this object, or of this user or bot. */
  object?: string | undefined;
  actor?: string | undefined;
  fields?: string[];
  /** Whether the stream is one of kept events, which resumes after an interruption where it ended. */
  resumes?: boolean;
  /** Called with each batch, before it is kept. */
  onEvents?: (events: LiveEvent[]) => void;
}

export type TailState = 'connecting' | 'live' | 'waiting' | 'refused';

const KEPT = 5000;
const FLUSH_MS = 120;
const AGAIN_MS = 2000;
/** The server sends something at least every 15 seconds. */
const SILENT_MS = 40_000;
/** The server keeps no traffic, so that only a live stream is possible. */
export const NOT_KEPT = 'ERR_NGROK_5408';
/** The server cannot read the ID behind which the stream was to resume. */
const NO_CURSOR = 'ERR_NGROK_5407';

/** What the tab that has the stream tells the others. `at`: the server's time when it began. */
type Told =
  { state: TailState; at?: number } | { batch: Message[] } | { ask: true };

/** An interruption of the stream. */
export interface Cut {
  from: Date;
  /** When the stream went on. */
  to?: Date;
  /** Events of the time of the interruption that came after it. */
  recovered: number;
  /** Whether events may be missing, because the stream could not resume where it ended. */
  hasGap: boolean;
  /** Whether the events of the gap can be searched for. */
  isKept: boolean;
}

/**
 * Follows events of the server. Keeps the newest 5,000 and tells its watchers at most eight times a second, however many
 * arrive. `dropped` counts what the server skipped because this page was too slow.
 *
 * Tabs that follow the same events share one stream, because browsers open only six connections to a server. The tab that
 * has the lock has the stream, and tells the others; when it closes, the next one opens its own.
 */
export class Tail {
  events: LiveEvent[] = [];
  total = 0;
  dropped = 0;
  state: TailState = 'connecting';
  error: Error | undefined;
  /** The last interruption. */
  cut: Cut | undefined;
  /** Whether more came than are held: the oldest are no longer here. */
  isOver = false;
  version = 0;
  readonly #options: TailOptions;
  readonly #stop = new AbortController();
  readonly #watchers = new Set<() => void>();
  #waiting: LiveEvent[] = [];
  #leads = false;
  /** The ID behind which the stream resumes. */
  #last: string | undefined;
  /** The server's time when the stream went on. */
  #resumedAt = 0;
  #resumes: boolean;
  #attempt: AbortController | undefined;
  #channel: BroadcastChannel | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(options: TailOptions) {
    this.#options = options;
    this.#resumes = options.resumes ?? false;
  }

  start(): void {
    addEventListener('offline', this.#interrupt);
    void this.#run();
  }

  close(): void {
    removeEventListener('offline', this.#interrupt);
    this.#stop.abort();
    this.#attempt?.abort();
    this.#channel?.close();
    clearTimeout(this.#timer);
  }

  /** Lets go of all events, which are read from the logs again. */
  forget(): void {
    this.events = [];
    this.#waiting = [];
    this.isOver = false;
    this.#tell();
  }

  readonly watch = (watcher: () => void): (() => void) => {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  };

  /** Ends a stream that may be dead without saying so. */
  readonly #interrupt = (): void => this.#attempt?.abort();

  #path(): string {
    const { types, filter, object, actor, fields } = this.#options;
    const query = new URLSearchParams();
    if (this.#resumes) query.set('follow', 'true');
    if (types.length > 0) query.set('type', types.join(','));
    if (filter) query.set('filter', filter);
    if (object && this.#resumes) query.set('object_id', object);
    if (actor && this.#resumes) query.set('actor_id', actor);
    if (fields && !this.#resumes) query.set('fields', fields.join(','));
    return `${API_PREFIX}/events${this.#resumes ? '' : '/tail'}?${query}`;
  }

  async #run(): Promise<void> {
    // Both are missing only where the page is not secure; there is no session then either.
    const name = `culvert ${viewer.owner} ${this.#path()}`;
    const channel = new BroadcastChannel(name);
    this.#channel = channel;
    channel.addEventListener('message', ({ data }: MessageEvent<Told>) => {
      if (!this.#leads) this.#hear(data);
      else if ('ask' in data) this.#say({ state: this.state });
    });
    this.#say({ ask: true });
    const lead = async () => {
      this.#leads = true;
      await this.#follow();
    };
    await navigator.locks
      .request(name, { signal: this.#stop.signal }, lead)
      .catch(() => {});
  }

  async #follow(): Promise<void> {
    while (!this.#stop.signal.aborted) {
      try {
        await this.#read();
      } catch (error) {
        if (this.#stop.signal.aborted) return;
        if (
          error instanceof ApiError &&
          error.code === NOT_KEPT &&
          this.#resumes
        ) {
          this.#resumes = false;
          continue;
        }
        if (
          error instanceof ApiError &&
          error.code === NO_CURSOR &&
          this.#last !== undefined
        ) {
          this.#last = undefined;
          continue;
        }
        if (
          error instanceof ApiError &&
          error.status >= 400 &&
          error.status < 500 &&
          error.status !== 401 &&
          error.status !== 429
        ) {
          this.error = error;
          this.#set('refused');
          return;
        }
      }
      this.#set('waiting');
      await new Promise((resolve) => {
        setTimeout(resolve, AGAIN_MS);
      });
    }
  }

  /** Reads one stream to its end. */
  async #read(): Promise<void> {
    const attempt = new AbortController();
    this.#attempt = attempt;
    let watchdog = setTimeout(() => attempt.abort(), SILENT_MS);
    try {
      const headers: Record<string, string> =
        this.#last === undefined ? {} : { 'last-event-id': this.#last };
      const response = await consoleFetch(this.#path(), {
        signal: attempt.signal,
        headers,
      });
      if (!response.ok || !response.body) throw await errorOf(response);
      this.#set(
        'live',
        Date.parse(response.headers.get('date') ?? '') || Date.now(),
      );
      for await (const batch of messages(response.body)) {
        clearTimeout(watchdog);
        watchdog = setTimeout(() => attempt.abort(), SILENT_MS);
        if (batch.length === 0) continue;
        this.#say({ batch });
        this.#take(batch);
      }
    } finally {
      clearTimeout(watchdog);
    }
  }

  /** Another tab has the stream. */
  #hear(told: Told): void {
    if ('batch' in told) this.#take(told.batch);
    else if ('state' in told && told.state !== 'refused')
      this.#set(told.state, told.at);
  }

  #say(told: Told): void {
    if (!this.#stop.signal.aborted) this.#channel?.postMessage(told);
  }

  #take(batch: Message[]): void {
    const fresh: LiveEvent[] = [];
    for (const { event, data, id } of batch) {
      if (id !== undefined) this.#last = id;
      if (data === '') continue;
      const value = JSON.parse(data) as JsonObject & { lost?: number };
      if (event === 'lost') {
        this.dropped += value.lost ?? 0;
        continue;
      }
      // Kept events come with their place in the logs, others alone.
      const one =
        'event' in value
          ? keptEvent(value, (this.total += 1))
          : { ...(value as unknown as LiveEvent), n: (this.total += 1) };
      if (this.cut?.to && Date.parse(one.event_timestamp) < this.#resumedAt)
        this.cut.recovered += 1;
      fresh.push(one);
    }
    if (fresh.length === 0 && this.dropped === 0) return;
    this.#options.onEvents?.(fresh);
    this.isOver ||=
      this.events.length + this.#waiting.length + fresh.length > KEPT;
    this.#waiting = this.#waiting.concat(fresh).slice(-KEPT);
    this.#timer ??= setTimeout(() => this.#flush(), FLUSH_MS);
  }

  #flush(): void {
    this.#timer = undefined;
    this.events = this.events.concat(this.#waiting).slice(-KEPT);
    this.#waiting = [];
    this.#tell();
  }

  #set(state: TailState, at?: number): void {
    if (state === 'waiting' && this.state === 'live')
      this.cut = {
        from: new Date(),
        recovered: 0,
        hasGap: false,
        isKept: true,
      };
    if (state === 'live' && this.cut && !this.cut.to) {
      this.#resumedAt = at ?? Date.now();
      this.cut = {
        ...this.cut,
        to: new Date(),
        hasGap: this.#last === undefined,
        isKept: this.#resumes || !this.#options.resumes,
      };
    }
    if (this.#leads) this.#say(at === undefined ? { state } : { state, at });
    this.state = state;
    this.#tell();
  }

  #tell(): void {
    this.version += 1;
    for (const watcher of this.#watchers) watcher();
  }
}
