import { type Resolved, type Schema, type Schemas, resolve } from './schema';

interface RawParameter {
  name: string;
  in: string;
  description?: string;
  schema?: Schema;
}

interface RawOperation {
  operationId: string;
  summary?: string;
  tags?: string[];
  parameters?: RawParameter[];
  requestBody?: { content?: Record<string, { schema?: Schema }> };
  responses: Record<string, { content?: Record<string, { schema?: Schema }> }>;
}

export interface RawDocument {
  info: { version: string };
  paths: Record<string, Record<string, RawOperation>>;
  components: { schemas: Schemas };
}

/** One operation of the API. `path` still has its `{parameters}`. */
export interface Operation {
  id: string;
  /** What it is called behind `culvert api <collection>`. */
  command: string;
  method: string;
  path: string;
  summary: string;
  query: RawParameter[];
  body: Resolved | undefined;
  answer: Resolved | undefined;
}

export interface Resource {
  /** As in the path, such as `app/users`. */
  name: string;
  /** As in the console's own addresses, such as `app.users`. */
  slug: string;
  description: string;
  listKey: string;
  item: Resolved;
  list: Operation;
  filterable: boolean;
  get: Operation | undefined;
  create: Operation | undefined;
  update: Operation | undefined;
  remove: Operation | undefined;
  /** Operations below one object: what can be done to it, and what belongs to it. */
  below: Operation[];
}

export interface Model {
  version: string;
  schemas: Schemas;
  resources: Map<string, Resource>;
  eventTypes: string[];
  /** Names that stand for all event types of a class, in subscriptions. */
  eventClasses: string[];
}

const METHODS = ['get', 'post', 'patch', 'put', 'delete'];

function operation(
  schemas: Schemas,
  collection: string,
  path: string,
  method: string,
  raw: RawOperation,
): Operation {
  const body = raw.requestBody?.content?.['application/json']?.schema;
  // The one of a dry run, 200, comes before that of a creation, 201.
  const answer = Object.entries(raw.responses).findLast(([status]) =>
    status.startsWith('2'),
  )?.[1].content?.['application/json']?.schema;
  const prefix = `${collection.replace('/', '_')}_`;
  return {
    id: raw.operationId,
    command: raw.operationId.replace(prefix, '').replaceAll('_', '-'),
    method: method.toUpperCase(),
    path,
    summary: raw.summary ?? '',
    query: (raw.parameters ?? []).filter((one) => one.in === 'query'),
    body: body && resolve(schemas, body),
    answer: answer && resolve(schemas, answer),
  };
}

/** The list in an answer, if it is one: its key and what is in it. */
export function listIn(
  schemas: Schemas,
  answer: Resolved | undefined,
): { key: string; item: Resolved } | undefined {
  for (const [key, schema] of Object.entries(answer?.properties ?? {})) {
    if (
      schema.type === 'array' &&
      schema.items &&
      !answer?.properties?.id &&
      (answer?.properties?.next_page_uri || answer?.properties?.uri)
    ) {
      return { key, item: resolve(schemas, schema.items) };
    }
  }
  return undefined;
}

/** The model without the operations that are not among `rights`. */
export function permitted(model: Model, rights: ReadonlySet<string>): Model {
  const may = <T extends Operation | undefined>(one: T): T | undefined =>
    one && rights.has(one.id) ? one : undefined;
  const resources = new Map<string, Resource>();
  for (const [name, resource] of model.resources) {
    if (!may(resource.list)) continue;
    resources.set(name, {
      ...resource,
      get: may(resource.get),
      create: may(resource.create),
      update: may(resource.update),
      remove: may(resource.remove),
      below: resource.below.filter(may),
    });
  }
  return { ...model, resources };
}

export function buildModel(document: RawDocument): Model {
  const { schemas } = document.components;
  const all: Operation[] = [];
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const method of METHODS) {
      const raw = methods[method];
      if (raw)
        all.push(operation(schemas, raw.tags?.[0] ?? '', path, method, raw));
    }
  }
  const resources = new Map<string, Resource>();
  for (const list of all) {
    const found =
      list.method === 'GET' && !list.path.includes('{')
        ? listIn(schemas, list.answer)
        : undefined;
    // What has no id is no object: kept events have pages of their own.
    if (!found?.item.properties?.id) continue;
    const name = list.path.slice(1);
    const single = all.filter((other) => other.path === `${list.path}/{id}`);
    // Nor is what cannot be read by its id: the top of the statistics.
    if (single.length === 0) continue;
    const by = (method: string) =>
      single.find((other) => other.method === method);
    resources.set(name, {
      name,
      slug: name.replaceAll('/', '.'),
      description: list.summary
        .replace(/^.*?newest first\.\s*/, '')
        .replace(/^[^:.]*: (.)/, (_, first: string) => first.toUpperCase()),
      listKey: found.key,
      item: by('GET')?.answer ?? found.item,
      list,
      filterable: list.query.some((one) => one.name === 'filter'),
      get: by('GET'),
      create: all.find(
        (other) => other.path === list.path && other.method === 'POST',
      ),
      update: by('PATCH') ?? by('PUT'),
      remove: by('DELETE'),
      below: all.filter((other) => other.path.startsWith(`${list.path}/{id}/`)),
    });
  }
  const source = schemas.EventSourceCreate?.properties?.type;
  const sourceTypes = (
    source ? (resolve(schemas, source).enum ?? []) : []
  ).filter((type) => typeof type === 'string');
  // A type has a version; a class of types has none.
  const eventTypes = sourceTypes.filter((type) => type.includes('.'));
  const eventClasses = sourceTypes.filter((type) => !type.includes('.'));
  return {
    version: document.info.version,
    schemas,
    resources,
    eventTypes,
    eventClasses,
  };
}
