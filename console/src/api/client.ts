import createClient, { type Middleware } from 'openapi-fetch';
import type { paths } from '../../generated/api';
import { API_PREFIX, consoleFetch, errorOf } from './http';

const throwErrors: Middleware = {
  async onResponse({ response }) {
    if (!response.ok) throw await errorOf(response);
  },
};

/** The management API with the types of its OpenAPI document, for pages that know their resource. Errors are thrown. */
export const api = createClient<paths>({
  baseUrl: API_PREFIX,
  fetch: consoleFetch,
});
api.use(throwErrors);

/** The body of an answer. It is there: anything but success was thrown. */
export function body<T>(answer: { data?: T }): T {
  return answer.data as T;
}
