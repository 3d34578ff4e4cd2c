import './theme/mantine';
import { MantineProvider } from '@mantine/core';
import { QueryClient, QueryClientProvider } from '@tanstack/react-query';
import { RouterProvider } from '@tanstack/react-router';
import { type ReactNode, StrictMode } from 'react';
import { createRoot } from 'react-dom/client';
import { ApiError } from './api/error';
import { isOld } from './api/build';
import { connection } from './api/connection';
import { router } from './router';
import { Invitation } from './access/invitation';
import type { Session } from './session/calls';
import { SessionGate } from './session/gate';
import { sessionQuery } from './session/session';
import { theme } from './theme/theme';

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
      <MantineProvider
        theme={theme}
        defaultColorScheme="auto"
        withCssVariables={false}
        withGlobalClasses={false}
      >
        <QueryClientProvider client={client}>{page}</QueryClientProvider>
      </MantineProvider>
    </StrictMode>,
  );
}

/** The page of an invitation's link. */
export function invite(root: HTMLElement): void {
  draw(root, <Invitation />);
}

/** The console for a session; without one, it asks for the session again. */
export function show(root: HTMLElement, session: Session | undefined): void {
  if (session) client.setQueryData(sessionQuery.queryKey, session);
  draw(
    root,
    <SessionGate>
      <RouterProvider router={router} />
    </SessionGate>,
  );
}
