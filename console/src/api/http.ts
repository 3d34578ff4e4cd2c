import { connection } from './connection';
import { ApiError, LostServerError } from './error';
import type { Json } from './json';

export const API_PREFIX = '/console/api';

/** Answers to `GET` that were asked for before the page that needs them was there, by their URL. Each is used once. */
export const ahead = new Map<string, Promise<Response>>();

/** Set by the session: called when the server no longer knows it. */
export const onSessionEnd: { call: () => void } = { call: () => {} };

/** `fetch` of the management API: adds the console's header, and notices a lost server and an ended session. */
export async function consoleFetch(
  input: Request | string,
  init?: RequestInit,
): Promise<Response> {
  const request = new Request(input, init);
  request.headers.set('x-culvert-console', '1');
  let response: Response;
  try {
    response = await fetch(request);
  } catch (error) {
    if (request.signal.aborted) throw error;
    connection.lose();
    throw new LostServerError();
  }
  if (response.status === 401) onSessionEnd.call();
  return response;
}

export async function errorOf(response: Response): Promise<ApiError> {
  const body: unknown = await response.json().catch(() => null);
  return new ApiError(
    response.status,
    body as ConstructorParameters<typeof ApiError>[1],
    response.headers.get('ngrok-operation-id'),
  );
}

/** One call of the management API whose path is known at run time only. */
export async function call(
  method: string,
  path: string,
  body?: Json,
  signal?: AbortSignal,
  headers?: Record<string, string>,
): Promise<Json> {
  const init: RequestInit = { method };
  if (headers) init.headers = headers;
  if (signal) init.signal = signal;
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { ...headers, 'content-type': 'application/json' };
  }
  const url = API_PREFIX + path;
  const early = method === 'GET' ? ahead.get(url) : undefined;
  if (early) ahead.delete(url);
  const response = await (early ?? consoleFetch(url, init));
  if (!response.ok) throw await errorOf(response);
  return response.status === 204 ? null : ((await response.json()) as Json);
}
