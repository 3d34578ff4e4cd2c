import { queryOptions } from '@tanstack/react-query';
import { api, body } from '@/api/client';

/** The server processes. Each describes itself every five seconds. */
export const nodesQuery = queryOptions({
  queryKey: ['nodes'],
  queryFn: async ({ signal }) => body(await api.GET('/nodes', { signal })),
  refetchInterval: 5000,
});
