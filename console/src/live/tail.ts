import { ApiError } from '@/api/error';
import { API_PREFIX, consoleFetch, errorOf } from '@/api/http';
import type { JsonObject } from '@/api/json';
import { messages } from './sse';

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

/**
 * Follows events of the server. Keeps the newest 5,000 and tells its watchers at most eight times a second, however many
 * arrive. `dropped` counts what the server skipped because this page was too slow.
 */
export class Tail {
  events: LiveEvent[] = [];
  total = 0;
  dropped = 0;
  state: TailState = 'connecting';
  error: Error | undefined;
  version = 0;
  readonly #options: TailOptions;
  readonly #stop = new AbortController();
  readonly #watchers = new Set<() => void>();
  #waiting: LiveEvent[] = [];
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(options: TailOptions) {
    this.#options = options;
  }

  start(): void {
    void this.#run();
  }

  close(): void {
    this.#stop.abort();
    clearTimeout(this.#timer);
  }

  clear(): void {
    this.events = [];
    this.#waiting = [];
    this.dropped = 0;
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
    while (!this.#stop.signal.aborted) {
      try {
        const response = await consoleFetch(`${API_PREFIX}/events/tail?${query}`, { signal: this.#stop.signal });
        if (!response.ok || !response.body) throw await errorOf(response);
        this.#set('live');
        for await (const batch of messages(response.body)) this.#take(batch);
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

  #take(batch: { event: string; data: string }[]): void {
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
    this.state = state;
    this.#tell();
  }

  #tell(): void {
    this.version += 1;
    for (const watcher of this.#watchers) watcher();
  }
}
