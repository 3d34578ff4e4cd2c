import { useNavigate, useParams, useSearch } from '@/routing/view';
import { article, nounOf } from '@/api/words';
import { customOf } from './custom';
import { FormPanel } from './form-panel';
import { NotAllowed } from './not-allowed';
import { listAddressOf } from './queries';
import { useResource } from './use-resource';

export default function CreatePanel() {
  const { collection } = useParams({ from: '/$collection' });
  const search = useSearch(listAddressOf);
  const resource = useResource(collection);
  const navigate = useNavigate();
  const title = `Create ${article(nounOf(resource.name))}`;
  const close = () =>
    void navigate({
      to: '/$collection',
      params: { collection },
      search,
      resetScroll: false,
    });
  if (!resource.create)
    return (
      <NotAllowed
        title={title}
        text="Your role may not do this. An admin can do it, or give you another role."
        onClose={close}
      />
    );
  const { defaults, CreatePanel: Own } = customOf(resource.name);
  if (Own) return <Own />;
  return (
    <FormPanel
      resource={resource}
      operation={resource.create}
      title={title}
      verb="Create"
      {...(defaults ? { defaults } : {})}
      onClose={close}
      onDone={(made) =>
        void (made?.id
          ? navigate({
              to: '/$collection/$id',
              params: { collection, id: String(made.id) },
            })
          : navigate({
              to: '/$collection',
              params: { collection },
              search: {},
            }))
      }
    />
  );
}
