import { useModel } from '@/api/document';
import type { Resource } from '@/api/model';

/** The resource of an address of the console, such as `app.users`. */
export function useResource(slug: string): Resource {
  const resource = useModel().resources.get(slug.replaceAll('.', '/'));
  if (!resource) throw new Error(`The API has no ${slug}.`);
  return resource;
}
