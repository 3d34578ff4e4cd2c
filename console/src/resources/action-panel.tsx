import { useNavigate, useParams } from '@tanstack/react-router';
import { FormPanel } from './form-panel';
import { sentence } from './actions';
import { useResource } from './use-resource';

/** The form of an operation on one object, such as `…/do/redrive`. */
export default function ActionPanel() {
  const { collection, id, action } = useParams({ from: '/$collection/$id/do/$action' });
  const resource = useResource(collection);
  const navigate = useNavigate();
  const operation = resource.below.find((one) => one.command === action);
  const back = () => void navigate({ to: '/$collection/$id', params: { collection, id } });
  if (!operation) return null;
  return <FormPanel resource={resource} operation={operation} title={sentence(operation)} verb={sentence(operation)} id={id} onClose={back} onDone={back} />;
}
