import { useQuery } from '@tanstack/react-query';
import { type JsonObject, text } from '@/api/json';
import { topQuery } from '@/charts/queries';
import { show } from '@/charts/units';

/** One query for all rows: the last minute. */
const SECONDS = 60;
const MOST = 1000;

export default function RateCell({ object }: { object: JsonObject }) {
  const top = useQuery(topQuery('endpoint', SECONDS, 'requests', MOST));
  if (!top.data) return <>{top.error ? '?' : '…'}</>;
  const found = top.data.top.find(({ id }) => id === text(object.id));
  const seconds = (Date.parse(top.data.to) - Date.parse(top.data.from)) / 1000;
  const requests = found?.traffic?.requests ?? 0;
  const connections = found?.traffic?.connections ?? 0;
  if (requests === 0 && connections > 0)
    return <>{show(connections / seconds, 'rate')} connections</>;
  return <>{requests === 0 ? '–' : show(requests / seconds, 'rate')}</>;
}
