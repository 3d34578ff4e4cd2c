import { useQuery } from '@tanstack/react-query';
import { useNavigate, useParams } from '@/routing/view';
import { call } from '@/api/http';
import type { JsonObject } from '@/api/json';
import { FormPanel } from './form-panel';
import { sentence } from './actions';
import { useResource } from './use-resource';

/** The form of an operation on one object, such as `…/do/redrive`. */
export default function ActionPanel() {
  const { collection, id, action } = useParams({
    from: '/$collection/$id/do/$action',
  });
  const resource = useResource(collection);
  const navigate = useNavigate();
  const operation = resource.below.find((one) => one.command === action);
  const back = () =>
    void navigate({
      to: '/$collection/$id',
      params: { collection, id },
      resetScroll: false,
    });
  // What is changed begins with what it is.
  const read =
    operation?.method === 'PATCH'
      ? resource.below.find(
          (one) => one.method === 'GET' && one.path === operation.path,
        )
      : undefined;
  const before = useQuery({
    queryKey: [resource.name, 'below', id, read?.id],
    queryFn: async ({ signal }) =>
      (await call(
        'GET',
        (read?.path ?? '').replace('{id}', encodeURIComponent(id)),
        undefined,
        signal,
      )) as JsonObject,
    enabled: Boolean(read),
  });
  if (!operation || (read && !before.data)) return null;
  return (
    <FormPanel
      resource={resource}
      operation={operation}
      title={sentence(operation)}
      verb={sentence(operation)}
      id={id}
      {...(before.data ? { object: before.data } : {})}
      onClose={back}
      onDone={back}
    />
  );
}
