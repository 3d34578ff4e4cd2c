import { useQuery } from '@tanstack/react-query';
import { consoleFetch } from '@/api/http';
import { isObject, type Json } from '@/api/json';
import { useSession } from '@/session/session';
import ui from '@/ui/ui.module.css';

/** What an operator should know although the server is ready, by part: the `notices` of `/readyz`. */
async function noticesOf(signal: AbortSignal): Promise<[string, string][]> {
  // A server that is not ready answers with 503 and the same body.
  const response = await consoleFetch('/readyz', { signal });
  const body = (await response.json().catch(() => null)) as Json;
  const notices = isObject(body) ? body.notices : undefined;
  return isObject(notices)
    ? Object.entries(notices).map(([part, what]) => [part, String(what)])
    : [];
}

/** Says loudly what this server wants its operator to know, such as a restored database. Admins only. */
export function Notices() {
  const isAdmin = useSession()?.role === 'admin';
  const { data } = useQuery({
    queryKey: ['notices'],
    queryFn: ({ signal }) => noticesOf(signal),
    refetchInterval: 10_000,
    enabled: isAdmin,
  });
  if (!isAdmin || !data?.length) return null;
  return (
    <div className={ui.failure} role="alert">
      <h2>The server has {data.length === 1 ? 'a notice' : 'notices'}</h2>
      {data.map(([part, what]) => (
        <p key={part}>
          <b>{part}</b>: {what}
        </p>
      ))}
    </div>
  );
}
