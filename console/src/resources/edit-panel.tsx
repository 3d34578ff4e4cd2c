import { useQuery } from '@tanstack/react-query';
import { useNavigate, useParams } from '@tanstack/react-router';
import { customOf } from './custom';
import { nounOf } from '@/api/words';
import { nameOf } from './names';
import { FormPanel } from './form-panel';
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
  if (!resource.update || !object.data) return null;
  const { EditPanel: Own } = customOf(resource.name);
  if (Own) return <Own object={object.data} />;
  return (
    <FormPanel
      resource={resource}
      operation={resource.update}
      title={
        nameOf(object.data) === id
          ? `Edit this ${nounOf(resource.name)}`
          : `Edit ${nameOf(object.data)}`
      }
      verb="Save"
      object={object.data}
      id={id}
      onClose={back}
      onDone={back}
    />
  );
}
