import { type JsonObject, refId, text } from '@/api/json';
import type { Resource } from '@/api/model';
import { type Resolved, type Schemas, resolve } from '@/api/schema';
import { humanize, referenceLabel } from '@/api/words';
import { type ColumnDef, customOf } from './custom';
import { collectionIn, NAMES, nameOf } from './names';
import type { Rank } from './rank';

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

/** At most so many columns beside the name. */
export const COLUMNS_MAX = 12;
const TIMES: Record<string, string> = {
  created_at: 'Created',
  started_at: 'Started',
};

/** A column beside the name. */
export interface Column {
  /** Its name in addresses. */
  key: string;
  label: string;
  /** The field; without one, `Cell` draws the object. */
  schema?: Resolved;
  Cell?: ColumnDef['Cell'];
  isTime?: boolean;
  isSortable: boolean;
  /** What the console sorts by; without it, the server sorts by the field. */
  rank?: Rank | undefined;
  /** Whether the largest come first when its head is pressed. */
  isDown: boolean;
}

const isSingle = ({ types, properties }: Resolved): boolean =>
  types.length > 0 &&
  !properties &&
  types.every((type) => type !== 'object' && type !== 'array');

/** Whether a field has the ID of another object, or those of several, which are shown by their names. */
function isReference(key: string, schema: Resolved, schemas: Schemas): boolean {
  if (schema.items)
    return isReference(key, resolve(schemas, schema.items), schemas);
  const fields = Object.keys(schema.properties ?? {});
  return (
    fields.toSorted().join() === 'id,uri' ||
    (isSingle(schema) &&
      (key.endsWith('_id') || collectionIn(schema.pattern) !== undefined))
  );
}

/** Amounts, which people look at from the largest on. A port is none. */
const isAmount = ({ types, format }: Resolved): boolean =>
  format !== 'uint16' &&
  types.some((type) => type === 'integer' || type === 'number');

/** What is too long for a cell. */
const isLong = (key: string, schema: Resolved): boolean =>
  /pem|policy$|_key$|fingerprint/.test(key) ||
  (key === 'certificate' && schema.types.includes('string'));

/** The field that the name of objects comes from first, if the server sorts by it. */
export function nameField(
  resource: Resource,
  schemas: Schemas,
): string | undefined {
  const { properties } = resource.item;
  const key = NAMES.find((one) => one !== 'type' && properties?.[one]);
  return key &&
    key !== 'id' &&
    isSingle(resolve(schemas, properties?.[key] ?? {}))
    ? key
    : undefined;
}

/** All columns that a table can have, first those that it has unless a person chooses. */
export function columnsOf(
  resource: Resource,
  schemas: Schemas,
): { all: Column[]; usual: string[] } {
  const { columns: further = [], fields, labels } = customOf(resource.name);
  const fieldColumn = (key: string): Column => {
    const schema = resolve(schemas, resource.item.properties?.[key] ?? {});
    const isOther = key !== 'id' && isReference(key, schema, schemas);
    const rank: Rank | undefined = isOther
      ? { field: key }
      : key === 'id'
        ? { of: ({ id }) => text(id) }
        : undefined;
    return {
      key,
      label:
        labels?.[key] ??
        TIMES[key] ??
        (isOther ? referenceLabel(key) : humanize(key)),
      schema,
      isTime: key in TIMES,
      isSortable:
        rank !== undefined ||
        (isSingle(schema) && schema.pattern === undefined),
      rank,
      isDown: isAmount(schema),
    };
  };
  const drawn = further.map(({ label, Cell, rank, isDown = false }) => ({
    key: label.toLowerCase().replaceAll(' ', '-'),
    label,
    Cell,
    isSortable: rank !== undefined,
    rank,
    isDown,
  }));
  const keys = Object.keys(resource.item.properties ?? {});
  const named = FIRST.find((key) => keys.includes(key));
  const shown =
    fields?.filter(
      (key) => keys.includes(key) || drawn.some((column) => column.key === key),
    ) ??
    keys
      .filter((key) => {
        const schema = resolve(schemas, resource.item.properties?.[key] ?? {});
        const isMany =
          schema.types.includes('array') ||
          (schema.types.includes('object') && !schema.properties);
        return !(
          key === named ||
          NOT.has(key) ||
          isMany ||
          isLong(key, schema)
        );
      })
      .slice(0, MOST);
  const time = Object.keys(TIMES).find((key) => keys.includes(key));
  const usual: Column[] = [
    ...shown.map(
      (key) => drawn.find((column) => column.key === key) ?? fieldColumn(key),
    ),
    ...drawn.filter(({ key }) => !shown.includes(key)),
    ...(time ? [fieldColumn(time)] : []),
  ];
  const others = keys
    .filter((key) => key !== named && key !== 'uri' && key !== time)
    .filter((key) => !usual.some((column) => column.key === key))
    .map(fieldColumn)
    .filter(({ key, schema }) => schema && !isLong(key, schema));
  return { all: [...usual, ...others], usual: usual.map(({ key }) => key) };
}

/** The columns that tell the objects of one object apart: not those that have its own ID or name in every row. */
export function columnsWithin(
  columns: Column[],
  objects: JsonObject[],
  parent: JsonObject,
): Column[] {
  const its = [text(parent.id), nameOf(parent)];
  const isIts = (object: JsonObject, key: string) =>
    its.includes(refId(object[key]) ?? text(object[key]));
  return columns.filter(
    ({ key }) => !objects.every((object) => isIts(object, key)),
  );
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
