import type { JsonObject } from '@/api/json';
import { Tag } from '@/ui/page';
import { domainState } from './status';

export default function StatusCell({ object }: { object: JsonObject }) {
  const { tone, word } = domainState(object);
  return <Tag tone={tone}>{word}</Tag>;
}
