import { useQueryClient } from '@tanstack/react-query';
import {
  type ErrorComponentProps,
  createRootRoute,
  createRoute,
  createRouter,
  lazyRouteComponent,
  parseSearchWith,
  stringifySearchWith,
} from '@tanstack/react-router';
import type { ComponentType } from 'react';
import { load } from './api/load';
import { Shell } from './shell/shell';
import { Failure, Loading } from './ui/states';
import { NotFound } from './shell/not-found';
import { searchOf, word } from './live/where';
import type { ListAddress } from './resources/queries';

/** A page in a file of its own. */
const page = <T extends Record<string, ComponentType>>(get: () => Promise<T>) =>
  lazyRouteComponent(() => load(get));

const root = createRootRoute({ component: Shell, notFoundComponent: NotFound });

const overview = createRoute({
  getParentRoute: () => root,
  path: '/',
  validateSearch: (
    search: Record<string, unknown>,
  ): { range?: string | undefined } => ({ range: word(search.range) }),
  component: page(() => import('./overview/overview-page')),
});
const traffic = createRoute({
  getParentRoute: () => root,
  path: '/traffic',
  validateSearch: searchOf,
  component: page(() => import('./live/traffic-page')),
});
const audit = createRoute({
  getParentRoute: () => root,
  path: '/audit',
  validateSearch: searchOf,
  component: page(() => import('./live/audit-page')),
});
const events = createRoute({
  getParentRoute: () => root,
  path: '/events',
  validateSearch: searchOf,
  component: page(() => import('./live/events-page')),
});
const event = createRoute({
  getParentRoute: () => root,
  path: '/events/$id',
  component: page(() => import('./live/event-page')),
});
const connect = createRoute({
  getParentRoute: () => root,
  path: '/connect',
  component: page(() => import('./agents/connect-page')),
});

const nodes = createRoute({
  getParentRoute: () => root,
  path: '/nodes',
  component: page(() => import('./nodes/nodes-page')),
});
const compare = createRoute({
  getParentRoute: () => root,
  path: '/compare',
  validateSearch: (
    search: Record<string, unknown>,
  ): { endpoints?: string | undefined; range?: string | undefined } => ({
    endpoints: word(search.endpoints),
    range: word(search.range),
  }),
  component: page(() => import('./endpoints/compare-page')),
});

/** Every collection of the API, such as `/endpoints` or `/app.users`. */
const collection = createRoute({
  getParentRoute: () => root,
  path: '/$collection',
  component: page(() => import('./resources/collection')),
});
const list = createRoute({
  getParentRoute: () => collection,
  id: '_list',
  validateSearch: (search: Record<string, unknown>): ListAddress => ({
    filter: word(search.filter),
    // The box of a list holds one of both.
    q: search.filter ? undefined : word(search.q),
    order: word(search.order),
    columns: word(search.columns),
  }),
  component: page(() => import('./resources/list-page')),
});
const listIndex = createRoute({ getParentRoute: () => list, path: '/' });
const create = createRoute({
  getParentRoute: () => list,
  path: '/new',
  component: page(() => import('./resources/create-panel')),
});
const detail = createRoute({
  getParentRoute: () => collection,
  path: '/$id',
  component: page(() => import('./resources/detail-page')),
});
const edit = createRoute({
  getParentRoute: () => detail,
  path: '/edit',
  component: page(() => import('./resources/edit-panel')),
});
const action = createRoute({
  getParentRoute: () => detail,
  path: '/do/$action',
  component: page(() => import('./resources/action-panel')),
});

/** A page that failed as a whole: without the server's document or the person's rights, there is nothing to draw. */
function Broken({ error, reset }: ErrorComponentProps) {
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

export const router = createRouter({
  basepath: '/console',
  // All parts of a search are texts, without quotes.
  parseSearch: parseSearchWith((value) => value),
  stringifySearch: stringifySearchWith(String),
  routeTree: root.addChildren([
    overview,
    traffic,
    audit,
    events,
    event,
    connect,
    nodes,
    compare,
    collection.addChildren([
      list.addChildren([listIndex, create]),
      detail.addChildren([edit, action]),
    ]),
  ]),
  defaultPreload: 'intent',
  // Back in a long list, the same rows are in sight; a new page starts at its top.
  scrollRestoration: true,
  defaultPendingComponent: Loading,
  defaultErrorComponent: Broken,
  defaultNotFoundComponent: NotFound,
});

declare module '@tanstack/react-router' {
  interface Register {
    router: typeof router;
  }
}
