import { useQuery } from '@tanstack/react-query';
import { useNavigate, useParams } from '@/routing/view';
import { customOf } from './custom';
import { nounOf } from '@/api/words';
import { nameOf } from './names';
import { FormPanel } from './form-panel';
import { NotAllowed } from './not-allowed';
import { objectQuery } from './queries';
import { useResource } from './use-resource';

export default function EditPanel() {
  const { collection, id } = useParams({ from: '/$collection/$id' });
  const resource = useResource(collection);
  const navigate = useNavigate();
  const object = useQuery(objectQuery(resource.name, id));
  const back = () =>
    void navigate({
      to: '/$collection/$id',
      params: { collection, id },
      resetScroll: false,
    });
  if (!object.data) return null;
  const { EditPanel: Own, fixed } = customOf(resource.name);
  const title =
    nameOf(object.data) === id
      ? `Edit this ${nounOf(resource.name)}`
      : `Edit ${nameOf(object.data)}`;
  const why = resource.update
    ? fixed?.(object.data)
    : 'Your role may not do this. An admin can do it, or give you another role.';
  if (!resource.update || why)
    return <NotAllowed title={title} text={why ?? ''} onClose={back} />;
  if (Own) return <Own object={object.data} />;
  return (
    <FormPanel
      resource={resource}
      operation={resource.update}
      title={title}
      verb="Save"
      object={object.data}
      id={id}
      onClose={back}
      onDone={back}
    />
  );
}
