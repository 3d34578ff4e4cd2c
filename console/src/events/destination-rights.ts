import { isObject, type JsonObject } from '@/api/json';

/** Whether the caller may see everything of a destination. Only its owner and admins get its target. */
export function isWhole(destination: JsonObject): boolean {
  const { target } = destination;
  return isObject(target) && Object.values(target).some((settings) => settings);
}
