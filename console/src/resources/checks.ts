import { type Json, isObject } from '@/api/json';
import { type Resolved, type Schemas, requiredOf, resolve } from '@/api/schema';
import { humanize } from '@/api/words';
import type { FieldError } from './field-errors';

const isEmpty = (value: Json | undefined) =>
  value === undefined ||
  value === null ||
  value === '' ||
  (Array.isArray(value) && value.length === 0);
const bytesOf = (text: string) => new TextEncoder().encode(text).length;

function whyNot(
  schema: Resolved,
  value: Json,
  label: string,
): string | undefined {
  if (typeof value === 'string') {
    if (schema.enum && !schema.enum.includes(value))
      return `${label} must be one of ${schema.enum.join(', ')}.`;
    if (schema.pattern && !new RegExp(schema.pattern, 'u').test(value))
      return `${label} does not have the form ${schema.pattern}.`;
    if (schema.maxLength !== undefined && bytesOf(value) > schema.maxLength)
      return `${label} is ${bytesOf(value)} bytes long. The limit is ${schema.maxLength}.`;
    if (schema.minLength !== undefined && bytesOf(value) < schema.minLength)
      return `${label} must have at least ${schema.minLength} bytes.`;
  }
  if (typeof value === 'number') {
    if (schema.minimum !== undefined && value < schema.minimum)
      return `${label} must be at least ${schema.minimum}.`;
    if (schema.maximum !== undefined && value > schema.maximum)
      return `${label} must be at most ${schema.maximum}.`;
    if (schema.types.includes('integer') && !Number.isInteger(value))
      return `${label} must be a whole number.`;
  }
  if (
    Array.isArray(value) &&
    schema.maxItems !== undefined &&
    value.length > schema.maxItems
  )
    return `${label} has ${value.length} entries. The limit is ${schema.maxItems}.`;
  return undefined;
}

/**
 * What the OpenAPI document forbids in these values: fields that are missing, and values outside of their limits. The
 * server checks more. `isChange`: secrets may be left out, because the stored ones are kept.
 */
export function problemsOf(
  schemas: Schemas,
  schema: Resolved,
  value: Json,
  isChange: boolean,
  path: string[] = [],
): FieldError[] {
  if (!isObject(value)) return [];
  const required = requiredOf(schema);
  return Object.entries(schema.properties ?? {}).flatMap(
    ([name, raw]): FieldError[] => {
      const field = resolve(schemas, raw);
      const here = [...path, name];
      const at = { field: here.join('.') };
      const given = value[name];
      if (isEmpty(given))
        return required.has(name) && !(isChange && field.writeOnly)
          ? [{ ...at, message: `${humanize(name)} is required.` }]
          : [];
      const why = whyNot(field, given as Json, humanize(name));
      if (why) return [{ ...at, message: why }];
      if (!isObject(given) || !field.properties) return [];
      if (
        field.maxProperties === 1 &&
        Object.values(given).filter((one) => one !== null).length === 0
      )
        return [
          {
            ...at,
            message: `Choose a kind of ${humanize(name).toLowerCase()}.`,
          },
        ];
      return problemsOf(schemas, field, given, isChange, here);
    },
  );
}
