import { useSuspenseQuery } from '@tanstack/react-query';
import { useMemo } from 'react';
import { rightsQuery } from '@/session/rights';
import all from './collections.json';

/** A collection of the API, as far as lists and links need it. The rest is in the model, which is much larger. */
export interface Collection {
  /** As in the path, such as `app/users`. */
  name: string;
  /** As in the console's own addresses, such as `app.users`. */
  slug: string;
  listKey: string;
  /** Whether the caller may create objects of it. */
  canCreate: boolean;
}

/** The collections of this version's API that the caller may list, by their names. */
export function useCollections(): Map<string, Collection> {
  const rights = useSuspenseQuery(rightsQuery).data;
  return useMemo(
    () =>
      new Map(
        all
          .filter(({ list }) => rights.has(list))
          .map(({ name, listKey, create }) => [
            name,
            {
              name,
              slug: name.replaceAll('/', '.'),
              listKey,
              canCreate: create !== undefined && rights.has(create),
            },
          ]),
      ),
    [rights],
  );
}

export function useCollection(name: string): Collection {
  const found = useCollections().get(name);
  if (!found) throw new Error(`The API has no ${name}.`);
  return found;
}
