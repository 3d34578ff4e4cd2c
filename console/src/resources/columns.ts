import type { JsonObject } from '@/api/json';
import type { Resource } from '@/api/model';
import { type Schemas, resolve } from '@/api/schema';
import { customOf } from './custom';
import { nameOf } from './names';

const FIRST = [
  'url',
  'domain',
  'name',
  'addr',
  'cidr',
  'subject_common_name',
  'email',
];
const NOT = new Set([
  'id',
  'uri',
  'metadata',
  'description',
  'region',
  'created_at',
  'updated_at',
  'started_at',
  'token',
  'public_key',
  'host',
  'hostport',
  'port',
  'proto',
  'scheme',
]);
const MOST = 4;

/** The fields that a table shows besides name and time: short ones, in the order of the schema. */
export function columnsOf(resource: Resource, schemas: Schemas): string[] {
  const chosen = customOf(resource.name).fields?.filter(
    (key) => resource.item.properties?.[key],
  );
  if (chosen) return chosen;
  const named = FIRST.find((key) => resource.item.properties?.[key]);
  const keys = Object.entries(resource.item.properties ?? {}).flatMap(
    ([key, raw]) => {
      const schema = resolve(schemas, raw);
      const long =
        /pem|policy$|_key$|fingerprint/.test(key) ||
        (key === 'certificate' && schema.types.includes('string')) ||
        schema.types.includes('array') ||
        (schema.types.includes('object') &&
          !schema.properties?.id &&
          !schema.properties);
      return key === named || NOT.has(key) || long ? [] : [key];
    },
  );
  return keys.slice(0, MOST);
}

/** The second line of a row's first cell. */
export function underName(object: JsonObject): string {
  const name = nameOf(object);
  const description =
    typeof object.description === 'string' ? object.description : '';
  return description !== '' && description !== name
    ? description
    : String(object.id ?? '');
}
