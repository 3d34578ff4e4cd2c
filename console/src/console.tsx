import './theme/theme.css';
import { QueryClient, QueryClientProvider } from '@tanstack/react-query';
import { lazy, type ReactNode, StrictMode, Suspense } from 'react';
import { createRoot } from 'react-dom/client';
import { ApiError } from './api/error';
import { isOld } from './api/build';
import { load } from './api/load';
import { connection } from './api/connection';
import { Router } from './router';
import type { Session } from './session/calls';
import { SessionGate } from './session/gate';
import { sessionQuery } from './session/session';
import { Loading } from './ui/states';

const Invitation = lazy(() => load(() => import('./access/invitation')));

const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 2000,
      retry: (failures, error) =>
        failures < 2 && error instanceof ApiError && error.status >= 500,
    },
  },
});
connection.onBack = () => {
  void isOld();
  void client.invalidateQueries();
};

function draw(root: HTMLElement, page: ReactNode): void {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={client}>{page}</QueryClientProvider>
    </StrictMode>,
  );
}

/** The page of an invitation's link. */
export function invite(root: HTMLElement): void {
  draw(
    root,
    <Suspense fallback={<Loading />}>
      <Invitation />
    </Suspense>,
  );
}

/** The console for a session; without one, it asks for the session again. */
export function show(root: HTMLElement, session: Session | undefined): void {
  if (session) client.setQueryData(sessionQuery.queryKey, session);
  draw(
    root,
    <SessionGate>
      <Router />
    </SessionGate>,
  );
}
