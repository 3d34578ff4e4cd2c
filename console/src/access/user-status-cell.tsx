import type { JsonObject } from '@/api/json';
import { Tag } from '@/ui/page';
import { userStatus } from './user-status';

export default function UserStatusCell({ object }: { object: JsonObject }) {
  const { tone, word } = userStatus(object);
  return <Tag tone={tone}>{word}</Tag>;
}
