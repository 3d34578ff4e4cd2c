import type { Exchange, Summary } from '@/inspect/exchange';
import type { Edited } from '@/inspect/replay-form';

export interface Tunnel {
  name: string;
  public_url: string;
  config: { addr: string };
}

/** What `/inspect/api/state` returns. */
export interface State {
  /** Another value after a new start of the agent. */
  run: string;
  agent: {
    status: 'connecting' | 'online' | 'reconnecting' | 'stopping';
    agent_version: string;
    session: { account: string; region: string; latency_ms: number | null };
  };
  server: string;
  trouble: string | null;
  notices: string[];
  tunnels: Tunnel[];
  /** Newest first. */
  requests: Summary[];
  oldest: number | null;
  seen: number;
  not_kept: number;
  kept_per_second: number;
}

async function call<T>(path: string, options?: RequestInit): Promise<T> {
  const response = await fetch(path, options);
  if (response.status === 204) return undefined as T;
  const body: unknown = await response.json();
  if (!response.ok)
    throw new Error((body as { details: { err: string } }).details.err);
  return body as T;
}

export const api = {
  state: (after: number) => call<State>(`/inspect/api/state?after=${after}`),
  exchange: (id: number) => call<Exchange>(`/inspect/api/requests/${id}`),
  clear: () => call<void>('/api/requests/http', { method: 'DELETE' }),
  replay: (id: number, edited: Edited | undefined) =>
    call<{ id: number }>(`/inspect/api/requests/${id}/replay`, {
      method: 'POST',
      body: edited ? JSON.stringify(edited) : null,
    }),
};
