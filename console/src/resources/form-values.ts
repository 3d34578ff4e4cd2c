import { type Json, type JsonObject, isObject, refId } from '@/api/json';
import { type Resolved, type Schemas, resolve } from '@/api/schema';

/** What a form of changes starts with: the object's fields under the names that the operation takes. */
export function initialValues(
  schemas: Schemas,
  body: Resolved,
  object: JsonObject | undefined,
): JsonObject {
  const values: JsonObject = {};
  if (!object) return values;
  for (const key of Object.keys(body.properties ?? {})) {
    if (key === 'id') continue;
    const single = key.replace(/_id$/, '');
    const many = key.replace(/y_ids$/, 'ies').replace(/_ids$/, 's');
    let value = object[key];
    if (value === undefined && single !== key)
      value =
        refId(object[single]) ??
        (typeof object[single] === 'string' ? object[single] : undefined);
    if (value === undefined && many !== key && Array.isArray(object[many]))
      value = object[many].flatMap((one) => refId(one) ?? []);
    if (value !== undefined && value !== null)
      values[key] = fitting(
        schemas,
        resolve(schemas, body.properties?.[key] ?? {}),
        value,
      );
  }
  return values;
}

/** Leaves out what a view shows and the operation does not take. */
function fitting(schemas: Schemas, schema: Resolved, value: Json): Json {
  if (Array.isArray(value)) {
    const inner = schema.items && resolve(schemas, schema.items);
    return inner ? value.map((one) => fitting(schemas, inner, one)) : value;
  }
  if (!isObject(value) || !schema.properties) return value;
  const kept = Object.entries(value).flatMap(([key, one]) => {
    const field = schema.properties?.[key];
    return field && one !== null
      ? [[key, fitting(schemas, resolve(schemas, field), one)] as const]
      : [];
  });
  return Object.fromEntries(kept);
}

/**
 * Without what was left empty. A text that was empty before stays: some secrets are shown as an empty text, and a change
 * that leaves them out would remove them.
 */
export function pruned(value: Json, before?: Json): Json | undefined {
  if (value === null || (value === '' && before !== '')) return undefined;
  if (Array.isArray(value)) return value.flatMap((one) => pruned(one) ?? []);
  if (!isObject(value)) return value;
  return Object.fromEntries(
    Object.entries(value).flatMap(([key, one]) => {
      const kept = pruned(one, isObject(before) ? before[key] : undefined);
      return kept === undefined ? [] : [[key, kept] as const];
    }),
  );
}

/** The body of a call: everything that was filled in, or of a change what is other than before. */
export function bodyOf(
  values: JsonObject,
  before: JsonObject | undefined,
): JsonObject {
  if (!before) return (pruned(values) ?? {}) as JsonObject;
  // An empty text clears a field.
  const cleared = Object.entries(before).flatMap(([key, value]) =>
    typeof value === 'string' && value !== '' && !(key in values)
      ? [[key, ''] as const]
      : [],
  );
  return Object.fromEntries([
    ...cleared,
    ...Object.entries(values).flatMap(([key, value]) => {
      if (JSON.stringify(value) === JSON.stringify(before[key])) return [];
      if (isObject(value))
        return [[key, pruned(value, before[key]) ?? {}] as [string, Json]];
      return value === null && before[key] === undefined
        ? []
        : [[key, value ?? ''] as [string, Json]];
    }),
  ]);
}

export function withValue(
  values: JsonObject,
  path: (string | number)[],
  value: Json | undefined,
): JsonObject {
  return setIn(values, path, value) as JsonObject;
}

function setIn(
  at: Json | undefined,
  path: (string | number)[],
  value: Json | undefined,
): Json {
  const [key, ...rest] = path;
  if (key === undefined) return value ?? null;
  if (typeof key === 'number') {
    const list = Array.isArray(at) ? [...at] : [];
    list[key] = setIn(list[key], rest, value);
    return list;
  }
  const object = isObject(at) ? { ...at } : {};
  if (rest.length === 0 && value === undefined) delete object[key];
  else object[key] = setIn(object[key], rest, value);
  return object;
}
