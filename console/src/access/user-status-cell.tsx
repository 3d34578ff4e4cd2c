import { type JsonObject, text } from '@/api/json';
import { Tag } from '@/ui/page';

/** Whether a person may sign in. */
export default function UserStatusCell({ object }: { object: JsonObject }) {
  if (object.active === true) return <Tag tone="ok">Active</Tag>;
  const end = text(object.invitation_expires_at);
  if (!end) return <Tag>Inactive</Tag>;
  return Date.parse(end) > Date.now() ? (
    <Tag tone="accent">Invited</Tag>
  ) : (
    <Tag tone="warn">Invitation expired</Tag>
  );
}
