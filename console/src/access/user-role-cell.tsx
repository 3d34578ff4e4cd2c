import { type JsonObject, text } from '@/api/json';
import { roleOf } from '@/session/roles';

export default function UserRoleCell({ object }: { object: JsonObject }) {
  return <>{roleOf(text(object.role))}</>;
}
