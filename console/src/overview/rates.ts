import type { JsonObject } from '@/api/json';
import { isObject } from '@/api/json';
import type { LiveEvent } from '@/live/entry';

export const SECONDS = 60;

export interface Second {
  requests: number;
  errors: number;
}

/** Requests and server errors in each of the last sixty seconds. */
export class Rates {
  readonly #buckets = new Map<number, Second>();
  total = 0;

  readonly take = (events: LiveEvent[]): void => {
    const now = Math.floor(Date.now() / 1000);
    const bucket = this.#buckets.get(now) ?? { requests: 0, errors: 0 };
    for (const { object } of events) {
      bucket.requests += 1;
      if (status(object) >= 500) bucket.errors += 1;
    }
    this.total += events.length;
    this.#buckets.set(now, bucket);
    for (const key of this.#buckets.keys())
      if (key < now - SECONDS) this.#buckets.delete(key);
  };

  /** The oldest first; the second that is not over is left out. */
  series(): Second[] {
    const now = Math.floor(Date.now() / 1000);
    return Array.from(
      { length: SECONDS },
      (_, index) =>
        this.#buckets.get(now - SECONDS + index) ?? { requests: 0, errors: 0 },
    );
  }
}

function status(object: JsonObject): number {
  const response = isObject(object.http) ? object.http.response : undefined;
  return isObject(response) ? Number(response.status_code ?? 0) : 0;
}
