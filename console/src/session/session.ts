import { queryOptions, useQuery } from '@tanstack/react-query';
import { LostServerError } from '@/api/error';
import { errorOf } from '@/api/http';
import { connection } from '@/api/connection';

export interface Session {
  key_id: string;
  owner_id: string;
  role: string;
  expires_at: string;
}

const HEADERS = { 'content-type': 'application/json', 'x-culvert-console': '1' };

async function ask(method: string, body?: string): Promise<Response> {
  try {
    return await fetch('/console/session', { method, headers: HEADERS, ...(body === undefined ? {} : { body }) });
  } catch {
    connection.lose();
    throw new LostServerError();
  }
}

/** Who is signed in; `null` for nobody. */
export const sessionQuery = queryOptions<Session | null>({
  queryKey: ['session'],
  staleTime: Infinity,
  queryFn: async () => {
    const response = await ask('GET');
    if (response.status === 401) return null;
    if (!response.ok) throw await errorOf(response);
    return (await response.json()) as Session;
  },
});

export function useSession(): Session | null {
  return useQuery(sessionQuery).data ?? null;
}

export async function signIn(token: string): Promise<Session> {
  const response = await ask('POST', JSON.stringify({ token }));
  if (!response.ok) throw await errorOf(response);
  return (await response.json()) as Session;
}

export async function signOut(): Promise<void> {
  const response = await ask('DELETE');
  if (!response.ok && response.status !== 401) throw await errorOf(response);
}
