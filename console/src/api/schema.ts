/** The part of JSON Schema that the OpenAPI document uses. */
export interface Schema {
  $ref?: string;
  type?: string | string[];
  description?: string;
  format?: string;
  properties?: Record<string, Schema>;
  required?: string[];
  items?: Schema;
  enum?: (string | number | null)[];
  /** A sentence for each value of `enum`. */
  'x-enum-descriptions'?: string[];
  anyOf?: Schema[];
  oneOf?: Schema[];
  const?: string | number;
  default?: unknown;
  /** Never shown again: an empty value of a change keeps what is stored. */
  writeOnly?: boolean;
  /** Needed by a creation, though a change may leave it out. */
  'x-culvert-required'?: boolean;
  additionalProperties?: boolean | Schema;
  pattern?: string;
  minLength?: number;
  maxLength?: number;
  maxItems?: number;
  minProperties?: number;
  maxProperties?: number;
  minimum?: number;
  maximum?: number;
}

/** A schema without references and without `null`, and whether it allows `null`. */
export interface Resolved extends Schema {
  nullable: boolean;
  types: string[];
}

export type Schemas = Record<string, Schema>;

export function resolve(schemas: Schemas, schema: Schema): Resolved {
  let nullable = false;
  let merged: Schema = schema;
  for (let depth = 0; depth < 8; depth += 1) {
    const alternatives: Schema[] | undefined = merged.anyOf?.filter(
      (one) => one.type !== 'null',
    );
    if (alternatives && merged.anyOf) {
      nullable ||= alternatives.length < merged.anyOf.length;
      const { anyOf: _, ...rest } = merged;
      merged =
        alternatives.length === 1
          ? { ...alternatives[0], ...rest }
          : { ...rest, type: ['string', 'object'] };
    } else if (merged.$ref) {
      const { $ref, ...rest } = merged;
      merged = { ...schemas[$ref.slice($ref.lastIndexOf('/') + 1)], ...rest };
    } else break;
  }
  // An enumeration whose values have descriptions.
  const values = merged.oneOf?.flatMap((one) => one.const ?? []);
  if (values && values.length === merged.oneOf?.length)
    merged = { ...merged, enum: values, type: merged.type ?? 'string' };
  const all =
    typeof merged.type === 'string' ? [merged.type] : (merged.type ?? []);
  const types = all.filter((type) => type !== 'null');
  return { ...merged, types, nullable: nullable || types.length < all.length };
}

/** The fields of an object that a creation needs. */
export function requiredOf(schema: Schema): Set<string> {
  const marked = Object.entries(schema.properties ?? {}).filter(
    ([, field]) => field['x-culvert-required'],
  );
  return new Set([...(schema.required ?? []), ...marked.map(([name]) => name)]);
}
