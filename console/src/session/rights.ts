import { queryOptions } from '@tanstack/react-query';
import { LostServerError } from '@/api/error';
import { call } from '@/api/http';
import { isObject } from '@/api/json';

/** What the caller may do: the IDs of operations in the OpenAPI document. Objects of others may still be refused. */
export const rightsQuery = queryOptions<ReadonlySet<string>>({
  queryKey: ['self', 'operations'],
  staleTime: 30_000,
  // The pages that are here stay, and go on when the server is back.
  retry: (_failures, error) => error instanceof LostServerError,
  retryDelay: 2000,
  queryFn: async ({ signal }) => {
    const self = await call('GET', '/self', undefined, signal);
    const operations = isObject(self) ? self.operations : undefined;
    return new Set(Array.isArray(operations) ? operations.map(String) : []);
  },
});
