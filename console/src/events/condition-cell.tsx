import type { JsonObject } from '@/api/json';
import { inWords } from './condition';

/** What a rule watches. */
export default function ConditionCell({ object }: { object: JsonObject }) {
  return inWords(object.condition);
}
