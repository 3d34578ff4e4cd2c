import type { Client } from 'openapi-fetch';
import type { paths } from '../../generated/api';
import { call } from './http';
import type { Json } from './json';

interface Given {
  params?: {
    path?: Record<string, string>;
    query?: Record<string, unknown>;
  };
  body?: Json;
  signal?: AbortSignal;
}

/** Calls of one method. Lists in a query are one parameter for each value. */
const caller =
  (method: string) =>
  async (path: string, { params, body: sent, signal }: Given = {}) => {
    const filled = path.replaceAll(/\{(\w+)\}/g, (_, name: string) =>
      encodeURIComponent(params?.path?.[name] ?? ''),
    );
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(params?.query ?? {}))
      for (const one of Array.isArray(value) ? value : [value])
        if (one !== undefined && one !== null) query.append(name, String(one));
    const search = query.size > 0 ? `?${query}` : '';
    return { data: await call(method, filled + search, sent, signal) };
  };

/** The management API with the types of its OpenAPI document, for pages that know their resource. Errors are thrown. */
export const api = {
  GET: caller('GET'),
  POST: caller('POST'),
} as unknown as Pick<Client<paths>, 'GET' | 'POST'>;

/** The body of an answer. It is there: anything but success was thrown. */
export function body<T>(answer: { data?: T }): T {
  return answer.data as T;
}
