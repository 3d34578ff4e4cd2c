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
  anyOf?: Schema[];
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
    const alternatives: Schema[] | undefined = merged.anyOf?.filter((one) => one.type !== 'null');
    if (alternatives && merged.anyOf) {
      nullable ||= alternatives.length < merged.anyOf.length;
      const { anyOf: _, ...rest } = merged;
      merged = alternatives.length === 1 ? { ...alternatives[0], ...rest } : { ...rest, type: ['string', 'object'] };
    } else if (merged.$ref) {
      const { $ref, ...rest } = merged;
      merged = { ...schemas[$ref.slice($ref.lastIndexOf('/') + 1)], ...rest };
    } else break;
  }
  const all = typeof merged.type === 'string' ? [merged.type] : (merged.type ?? []);
  const types = all.filter((type) => type !== 'null');
  return { ...merged, types, nullable: nullable || types.length < all.length };
}
