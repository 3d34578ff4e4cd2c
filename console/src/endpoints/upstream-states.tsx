import { useQuery } from '@tanstack/react-query';
import { api, body } from '@/api/client';
import { show } from '@/charts/units';
import { Breakable } from '@/ui/breakable';
import { Section, Tag } from '@/ui/page';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';

const AGAIN_MS = 5000;

/** The upstreams of an endpoint with several: which are healthy, why not, and the last check of each. */
export function UpstreamStates({ id }: { id: string }) {
  const { data } = useQuery({
    queryKey: ['endpoints', 'upstreams', id],
    refetchInterval: AGAIN_MS,
    queryFn: async ({ signal }) =>
      body(
        await api.GET('/endpoints/{id}/upstreams', {
          params: { path: { id } },
          signal,
        }),
      ),
  });
  if (!data || data.upstreams.length === 0) return null;
  return (
    <Section title="Upstreams">
      <p className={ui.dim}>As node {data.node} sees them.</p>
      <ul className={ui.recent} aria-label="Upstreams">
        {data.upstreams.map((one) => (
          <li key={one.url}>
            <Tag tone={one.state === 'healthy' ? 'ok' : 'bad'}>
              {one.state === 'healthy' ? 'Healthy' : 'Unhealthy'}
            </Tag>
            <Breakable text={one.url} />
            <span className={ui.dim}>
              {one.reason ? `${one.reason}; ` : ''}
              {one.ejected_for_seconds === null
                ? ''
                : `left out for ${one.ejected_for_seconds} s; `}
              {one.state === 'unhealthy' && one.used
                ? 'gets traffic all the same; '
                : ''}
              {one.open_requests} open
              {one.last_check ? (
                <>
                  , checked in {show(one.last_check.duration_ms, 'ms')}{' '}
                  <Time value={one.last_check.at} relative />
                </>
              ) : null}
              {one.nodes
                .filter((other) => other.state !== one.state)
                .map(
                  (other) =>
                    `; ${other.state} as node ${other.node} sees it${other.reason ? ` (${other.reason})` : ''}`,
                )}
            </span>
          </li>
        ))}
      </ul>
    </Section>
  );
}
