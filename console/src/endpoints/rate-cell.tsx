import { type JsonObject, text } from '@/api/json';
import { show } from '@/charts/units';
import { useLastMinute } from './last-minute';

export default function RateCell({ object }: { object: JsonObject }) {
  const minute = useLastMinute(text(object.id));
  if (!minute) return <>{minute === null ? '?' : '…'}</>;
  const { traffic, seconds, isCertain } = minute;
  const requests = traffic?.requests ?? 0;
  const connections = traffic?.connections ?? 0;
  if (requests === 0 && connections > 0)
    return <>{show(connections / seconds, 'rate')} connections</>;
  if (requests === 0) return <>{isCertain ? '–' : '?'}</>;
  return <>{show(requests / seconds, 'rate')}</>;
}
