import { queryOptions } from '@tanstack/react-query';
import { api, body } from '@/api/client';

export function healthQuery(id: string) {
  return queryOptions({
    queryKey: ['event_destinations', 'health', id],
    queryFn: async ({ signal }) =>
      body(
        await api.GET('/event_destinations/{id}/health', {
          params: { path: { id } },
          signal,
        }),
      ),
    refetchInterval: 5000,
  });
}

export function attemptsQuery(id: string) {
  return queryOptions({
    queryKey: ['event_destinations', 'attempts', id],
    queryFn: async ({ signal }) =>
      body(
        await api.GET('/event_destinations/{id}/attempts', {
          params: { path: { id } },
          signal,
        }),
      ),
    refetchInterval: 10_000,
  });
}

export function deadLettersQuery(id: string, before: string | undefined) {
  return queryOptions({
    queryKey: ['event_destinations', 'dead-letters', id, before ?? ''],
    queryFn: async ({ signal }) =>
      body(
        await api.GET('/event_destinations/{id}/dead_letters', {
          params: {
            path: { id },
            query: before ? { limit: 20, before_id: before } : { limit: 20 },
          },
          signal,
        }),
      ),
    refetchInterval: before ? false : 10_000,
  });
}

export function replayQuery(id: string) {
  return queryOptions({
    queryKey: ['event_destinations', 'replay', id],
    queryFn: async ({ signal }) =>
      body(
        await api.GET('/event_destinations/{id}/replay', {
          params: { path: { id } },
          signal,
        }),
      ),
    retry: false,
    refetchInterval: (query) =>
      query.state.data?.state === 'running' ? 1000 : false,
  });
}
