import { type JsonObject, refId, text } from '@/api/json';
import { Tag } from '@/ui/page';
import ui from '@/ui/ui.module.css';
import { failedShare, useLastMinute } from './last-minute';

/** Whether an agent serves the endpoint; of others, what their traffic of the last minute says. */
export default function OnlineCell({ object }: { object: JsonObject }) {
  const minute = useLastMinute(text(object.id));
  if (refId(object.tunnel_session)) return <Tag tone="ok">Online</Tag>;
  if (object.type === 'ephemeral') return <Tag tone="bad">Offline</Tag>;
  const share = minute ? failedShare(minute.traffic) : undefined;
  if (share === undefined)
    return (
      <span className={ui.dim} title="No request in the last minute says it.">
        –
      </span>
    );
  return share === 1 ? (
    <Tag tone="bad">Fails</Tag>
  ) : (
    <Tag tone="ok">Answers</Tag>
  );
}
