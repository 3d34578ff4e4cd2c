import { type Json, type JsonObject, isObject, refId } from '@/api/json';

/** The fields under the names that filters and subscriptions use, without those that are null. */
export function flat(object: JsonObject, prefix: string): [string, Json][] {
  return Object.entries(object).flatMap(([key, value]): [string, Json][] => {
    const name = prefix ? `${prefix}.${key}` : key;
    if (value === null) return [];
    return isObject(value) && !refId(value)
      ? flat(value, name)
      : [[name, value]];
  });
}
