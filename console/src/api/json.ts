export type Json = null | boolean | number | string | Json[] | JsonObject;
export type JsonObject = { [key: string]: Json };

export function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

export function text(value: Json | undefined): string {
  if (value === null || value === undefined) return '';
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}

/** A reference to another object, as the API writes it. */
export function refId(value: Json | undefined): string | undefined {
  return isObject(value) &&
    typeof value.id === 'string' &&
    'uri' in value &&
    Object.keys(value).length === 2
    ? value.id
    : undefined;
}
