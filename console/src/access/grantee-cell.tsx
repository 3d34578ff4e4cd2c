import { type JsonObject, text } from '@/api/json';
import { EVERYONE } from '@/resources/value';
import ui from '@/ui/ui.module.css';

export default function GranteeCell({ object }: { object: JsonObject }) {
  const grantee = text(object.grantee);
  if (grantee === EVERYONE) return <span className={ui.tag}>All members</span>;
  return (
    <span className={ui.fit} title={grantee}>
      {grantee}
    </span>
  );
}
