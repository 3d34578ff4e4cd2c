import { type JsonObject, text } from '@/api/json';
import { Tag } from '@/ui/page';
import ui from '@/ui/ui.module.css';
import { onlineOf, useLastMinute } from './last-minute';

const TAGS = {
  online: <Tag tone="ok">Online</Tag>,
  offline: <Tag tone="bad">Offline</Tag>,
  answers: <Tag tone="ok">Answers</Tag>,
  fails: <Tag tone="bad">Fails</Tag>,
};

/** Whether an agent serves the endpoint; of others, what their traffic of the last minute says. */
export default function OnlineCell({ object }: { object: JsonObject }) {
  const online = onlineOf(object, useLastMinute(text(object.id)));
  return online ? (
    TAGS[online]
  ) : (
    <span className={ui.dim} title="No request in the last minute says it.">
      –
    </span>
  );
}
