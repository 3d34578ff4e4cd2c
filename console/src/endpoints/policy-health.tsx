import { useQuery } from '@tanstack/react-query';
import { api, body } from '@/api/client';
import ui from '@/ui/ui.module.css';

/** What the endpoint's policy may no longer do with its secrets; nothing if it may do everything. */
export function PolicyHealth({ id }: { id: string }) {
  const { data } = useQuery({
    queryKey: ['endpoints', 'health', id],
    queryFn: async ({ signal }) =>
      body(
        await api.GET('/endpoints/{id}/health', {
          params: { path: { id } },
          signal,
        }),
      ),
  });
  if (!data || data.problems.length === 0) return null;
  const title =
    data.state === 'refused'
      ? 'The traffic policy refuses everything'
      : 'The traffic policy will refuse everything';
  return (
    <div className={ui.failure} role="alert">
      <h2>{title}</h2>
      {data.problems.map((one) => (
        <p key={one.message}>{one.message}</p>
      ))}
    </div>
  );
}
