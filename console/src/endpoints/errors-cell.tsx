import { type JsonObject, text } from '@/api/json';
import { show } from '@/charts/units';
import { Tag } from '@/ui/page';
import { failedShare, useLastMinute } from './last-minute';

/** Above it the share of failed requests is marked. */
const MANY = 0.01;

/** The share of requests of the last minute that failed. */
export default function ErrorsCell({ object }: { object: JsonObject }) {
  const minute = useLastMinute(text(object.id));
  if (!minute) return <>{minute === null ? '?' : '…'}</>;
  const share = failedShare(minute.traffic);
  if (share === undefined) return <>{minute.isCertain ? '–' : '?'}</>;
  if (share === 0) return <>{show(0, 'share')}</>;
  return <Tag tone={share > MANY ? 'bad' : 'warn'}>{show(share, 'share')}</Tag>;
}
