import { useQueryClient } from '@tanstack/react-query';
import { Shell } from './shell/shell';
import { route } from './routing/routes';
import { followHistory } from './routing/place';
import { type FailureProps, page, Pages } from './routing/view';
import { early } from './session/early';
import { Failure } from './ui/states';

route(
  '/',
  page(() => import('./overview/overview-page'), true),
);
route(
  '/traffic',
  page(() => import('./live/traffic-page')),
);
route(
  '/audit',
  page(() => import('./live/audit-page')),
);
route(
  '/events',
  page(() => import('./live/events-page')),
);
route(
  '/events/$id',
  page(() => import('./live/event-page')),
);
route(
  '/connect',
  page(() => import('./agents/connect-page')),
);
route(
  '/nodes',
  page(() => import('./nodes/nodes-page')),
);
route(
  '/compare',
  page(() => import('./endpoints/compare-page')),
);

/** Every collection of the API, such as `/endpoints` or `/app.users`. */
const collection = page(() => {
  early.askDocument();
  return import('./resources/collection');
});
const list = page(() => import('./resources/list-page'));
const create = page(() => import('./resources/create-panel'));
const detail = page(() => import('./resources/detail-page'));
const edit = page(() => import('./resources/edit-panel'));
const action = page(() => import('./resources/action-panel'));
route('/$collection', collection, list);
route('/$collection/new', collection, list, create);
route('/$collection/$id', collection, detail);
route('/$collection/$id/edit', collection, detail, edit);
route('/$collection/$id/do/$action', collection, detail, action);

const missing = page(() => import('./shell/not-found'));

/** A page that failed as a whole: without the server's document or the person's rights, there is nothing to draw. */
function Broken({ error, reset }: FailureProps) {
  const client = useQueryClient();
  const retry = () => {
    void client.resetQueries({
      predicate: ({ state }) => state.status === 'error',
    });
    reset();
  };
  return (
    <Failure
      error={error instanceof Error ? error : new Error(String(error))}
      retry={retry}
    />
  );
}

followHistory();

/** The pages of the console. */
export const Router = () => (
  <Pages shell={Shell} missing={missing} failed={Broken} />
);
