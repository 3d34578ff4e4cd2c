import { queryOptions } from '@tanstack/react-query';
import { LostServerError } from '@/api/error';
import { errorOf } from '@/api/http';
import { isObject, type Json } from '@/api/json';
import { early } from './early';

/** What the caller may do: the IDs of operations in the OpenAPI document. Objects of others may still be refused. */
export const rightsQuery = queryOptions<ReadonlySet<string>>({
  queryKey: ['self', 'operations'],
  staleTime: 30_000,
  // The pages that are here stay, and go on when the server is back.
  retry: (_failures, error) => error instanceof LostServerError,
  retryDelay: 2000,
  queryFn: async () => {
    const response = await early.self();
    if (!response.ok) throw await errorOf(response);
    const self = (await response.json()) as Json;
    const operations = isObject(self) ? self.operations : undefined;
    return new Set(Array.isArray(operations) ? operations.map(String) : []);
  },
});
