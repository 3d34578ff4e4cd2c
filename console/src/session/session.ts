import { queryOptions, useQuery } from '@tanstack/react-query';
import { readSession, type Session } from './calls';

/** Who is signed in; `null` for nobody. */
export const sessionQuery = queryOptions<Session | null>({
  queryKey: ['session'],
  staleTime: Infinity,
  queryFn: readSession,
});

export function useSession(): Session | null {
  return useQuery(sessionQuery).data ?? null;
}
