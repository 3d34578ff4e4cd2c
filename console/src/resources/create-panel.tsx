import { useNavigate, useParams, useSearch } from '@tanstack/react-router';
import { article, nounOf } from '@/api/words';
import { customOf } from './custom';
import { FormPanel } from './form-panel';
import { useResource } from './use-resource';

export default function CreatePanel() {
  const { collection } = useParams({ from: '/$collection' });
  const search = useSearch({ from: '/$collection/_list' });
  const resource = useResource(collection);
  const navigate = useNavigate();
  if (!resource.create) return null;
  const { defaults, CreatePanel: Own } = customOf(resource.name);
  if (Own) return <Own />;
  return (
    <FormPanel
      resource={resource}
      operation={resource.create}
      title={`Create ${article(nounOf(resource.name))}`}
      verb="Create"
      {...(defaults ? { defaults } : {})}
      onClose={() =>
        void navigate({
          to: '/$collection',
          params: { collection },
          search,
          resetScroll: false,
        })
      }
      onDone={(made) =>
        void navigate(
          made?.id
            ? {
                to: '/$collection/$id',
                params: { collection, id: String(made.id) },
              }
            : { to: '/$collection', params: { collection }, search: {} },
        )
      }
    />
  );
}
