import { queryOptions, useQuery, useSuspenseQuery } from '@tanstack/react-query';
import { LostServerError } from './error';
import { connection } from './connection';
import { buildModel, type Model } from './model';

/** The OpenAPI document of the running server, as a list of resources. It cannot change while the server runs. */
export const modelQuery = queryOptions<Model>({
  queryKey: ['openapi'],
  staleTime: Infinity,
  gcTime: Infinity,
  queryFn: async () => {
    const response = await fetch('/openapi.json').catch(() => {
      connection.lose();
      throw new LostServerError();
    });
    return buildModel(await response.json());
  },
});

export function useModel(): Model {
  return useSuspenseQuery(modelQuery).data;
}

export function useModelIfThere(): Model | undefined {
  return useQuery(modelQuery).data;
}
