import { ApiError } from '@/api/error';
import { API_PREFIX, consoleFetch, errorOf } from '@/api/http';
import type { JsonObject } from '@/api/json';
import { type Message, messages } from './sse';
import { viewer } from './viewer';

export interface LiveEvent {
  /** Counts up from 1 in the order of arrival. */
  n: number;
  event_id: string;
  event_type: string;
  event_timestamp: string;
  principal: JsonObject | null;
  object: JsonObject;
}

export interface TailOptions {
  types: string[];
  filter?: string | undefined;
  fields?: string[];
  /** Called with each batch, before it is kept. */
  onEvents?: (events: LiveEvent[]) => void;
}

export type TailState = 'connecting' | 'live' | 'waiting' | 'refused';

const KEPT = 5000;
const FLUSH_MS = 120;
const AGAIN_MS = 2000;

/** What the tab that has the stream tells the others. */
type Told = { state: TailState } | { batch: Message[] } | { ask: true };

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
  /** The last interruption, whose events are not in the list. */
  gap: { from: Date; to: Date } | undefined;
  version = 0;
  readonly #options: TailOptions;
  readonly #stop = new AbortController();
  readonly #watchers = new Set<() => void>();
  #waiting: LiveEvent[] = [];
  #lostAt: Date | undefined;
  #leads = false;
  #channel: BroadcastChannel | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(options: TailOptions) {
    this.#options = options;
  }

  start(): void {
    void this.#run();
  }

  close(): void {
    this.#stop.abort();
    this.#channel?.close();
    clearTimeout(this.#timer);
  }

  clear(): void {
    this.events = [];
    this.#waiting = [];
    this.dropped = 0;
    this.gap = undefined;
    this.#tell();
  }

  readonly watch = (watcher: () => void): (() => void) => {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  };

  async #run(): Promise<void> {
    const { types, filter, fields } = this.#options;
    const query = new URLSearchParams();
    if (types.length > 0) query.set('type', types.join(','));
    if (filter) query.set('filter', filter);
    if (fields) query.set('fields', fields.join(','));
    const path = `${API_PREFIX}/events/tail?${query}`;
    // Both are missing only where the page is not secure; there is no session then either.
    const name = `culvert ${viewer.owner} ${path}`;
    const channel = new BroadcastChannel(name);
    this.#channel = channel;
    channel.addEventListener('message', ({ data }: MessageEvent<Told>) => {
      if (!this.#leads) this.#hear(data);
      else if ('ask' in data) this.#say({ state: this.state });
    });
    this.#say({ ask: true });
    const lead = async () => {
      this.#leads = true;
      await this.#follow(path);
    };
    await navigator.locks.request(name, { signal: this.#stop.signal }, lead).catch(() => {});
  }

  async #follow(path: string): Promise<void> {
    while (!this.#stop.signal.aborted) {
      try {
        const response = await consoleFetch(path, { signal: this.#stop.signal });
        if (!response.ok || !response.body) throw await errorOf(response);
        this.#set('live');
        for await (const batch of messages(response.body)) {
          this.#say({ batch });
          this.#take(batch);
        }
      } catch (error) {
        if (this.#stop.signal.aborted) return;
        if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 401 && error.status !== 429) {
          this.error = error;
          this.#set('refused');
          return;
        }
      }
      this.#set('waiting');
      await new Promise((resolve) => { setTimeout(resolve, AGAIN_MS); });
    }
  }

  /** Another tab has the stream. */
  #hear(told: Told): void {
    if ('batch' in told) this.#take(told.batch);
    else if ('state' in told && told.state !== 'refused') this.#set(told.state);
  }

  #say(told: Told): void {
    if (!this.#stop.signal.aborted) this.#channel?.postMessage(told);
  }

  #take(batch: Message[]): void {
    const fresh: LiveEvent[] = [];
    for (const { event, data } of batch) {
      const value = JSON.parse(data) as LiveEvent & { lost?: number };
      if (event === 'lost') this.dropped += value.lost ?? 0;
      else fresh.push({ ...value, n: (this.total += 1) });
    }
    this.#options.onEvents?.(fresh);
    this.#waiting = this.#waiting.concat(fresh).slice(-KEPT);
    this.#timer ??= setTimeout(() => this.#flush(), FLUSH_MS);
  }

  #flush(): void {
    this.#timer = undefined;
    this.events = this.events.concat(this.#waiting).slice(-KEPT);
    this.#waiting = [];
    this.#tell();
  }

  #set(state: TailState): void {
    if (state === 'waiting' && this.state === 'live') this.#lostAt = new Date();
    if (state === 'live' && this.#lostAt) {
      this.gap = { from: this.#lostAt, to: new Date() };
      this.#lostAt = undefined;
    }
    if (this.#leads) this.#say({ state });
    this.state = state;
    this.#tell();
  }

  #tell(): void {
    this.version += 1;
    for (const watcher of this.#watchers) watcher();
  }
}
