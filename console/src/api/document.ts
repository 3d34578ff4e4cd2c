import {
  queryOptions,
  useQuery,
  useSuspenseQuery,
} from '@tanstack/react-query';
import { LostServerError } from './error';
import { connection } from './connection';
import { useMemo } from 'react';
import { early } from '@/session/early';
import { rightsQuery } from '@/session/rights';
import { buildModel, type Model, permitted } from './model';

/** The OpenAPI document of the running server, as a list of resources. It cannot change while the server runs. */
export const modelQuery = queryOptions<Model>({
  queryKey: ['openapi'],
  staleTime: Infinity,
  gcTime: Infinity,
  // The pages that are here stay, and go on when the server is back.
  retry: (_failures, error) => error instanceof LostServerError,
  retryDelay: 2000,
  queryFn: async () => {
    const response = await early.document().catch(() => {
      connection.lose();
      throw new LostServerError();
    });
    return buildModel(await response.json());
  },
});

/** The resources and operations that the caller may use. What it may not do is not offered. */
export function useModel(): Model {
  const model = useSuspenseQuery(modelQuery).data;
  const rights = useSuspenseQuery(rightsQuery).data;
  return useMemo(() => permitted(model, rights), [model, rights]);
}

export function useModelIfThere(): Model | undefined {
  return useQuery(modelQuery).data;
}
