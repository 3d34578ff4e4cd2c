import { queryOptions, useQuery } from '@tanstack/react-query';
import { useModelIfThere } from '@/api/document';
import { call } from '@/api/http';
import { isObject, type JsonObject } from '@/api/json';
import type { Resource } from '@/api/model';
import { collectionOf, nameOf } from './names';
import { listAt } from './queries';

/** IDs in one question. */
const TOGETHER = 40;
/** What is asked for so soon after each other is asked for together. */
const TOGETHER_MS = 10;
const ID = /^[a-z0-9]+_[0-9A-Za-z]+$/;

type Take = (object: JsonObject | undefined) => void;
const waiting = new Map<string, Map<string, Take[]>>();

async function ask(resource: Resource): Promise<void> {
  const asked = [...(waiting.get(resource.name) ?? [])];
  waiting.delete(resource.name);
  const tell = (takes: Take[], object: JsonObject | undefined) =>
    takes.forEach((take) => take(object));
  if (!resource.filterable) {
    await Promise.all(
      asked.map(async ([id, takes]) => {
        const object = await call('GET', `/${resource.name}/${id}`).catch(
          () => undefined,
        );
        tell(takes, isObject(object) ? object : undefined);
      }),
    );
    return;
  }
  for (let at = 0; at < asked.length; at += TOGETHER) {
    const part = asked.slice(at, at + TOGETHER);
    const ids = part.map(([id]) => JSON.stringify(id)).join(', ');
    const found = await listAt(
      `/${resource.name}`,
      resource.listKey,
      { filter: `obj.id in [${ids}]` },
      100,
    ).catch(() => undefined);
    for (const [id, takes] of part)
      tell(
        takes,
        found?.objects.find((object) => object.id === id),
      );
  }
}

function objectOf(
  resource: Resource,
  id: string,
): Promise<JsonObject | undefined> {
  return new Promise((resolve) => {
    const ids = waiting.get(resource.name) ?? new Map<string, Take[]>();
    if (!waiting.has(resource.name)) {
      waiting.set(resource.name, ids);
      setTimeout(() => void ask(resource), TOGETHER_MS);
    }
    ids.set(id, [...(ids.get(id) ?? []), resolve]);
  });
}

/** The name of the object with an ID: its ID if it has no other, or if the person may not read it. */
export function nameQuery(resource: Resource | undefined, id: string) {
  return queryOptions({
    queryKey: [resource?.name ?? '', 'name', id],
    queryFn: async () => {
      const object = resource && (await objectOf(resource, id));
      return (object && nameOf(object)) || id;
    },
    enabled: resource?.get !== undefined && ID.test(id),
    staleTime: 60_000,
  });
}

/** The names of objects are asked for together. */
export function useNameOf(id: string, isWanted = true): string {
  const model = useModelIfThere();
  const resource = model?.resources.get(collectionOf(id) ?? '');
  const query = nameQuery(resource, id);
  const { data } = useQuery({
    ...query,
    enabled: query.enabled !== false && isWanted,
  });
  return data ?? id;
}
