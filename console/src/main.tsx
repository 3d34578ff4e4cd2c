import './theme/mantine';
import { MantineProvider } from '@mantine/core';
import { QueryClient, QueryClientProvider } from '@tanstack/react-query';
import { RouterProvider } from '@tanstack/react-router';
import { StrictMode } from 'react';
import { createRoot } from 'react-dom/client';
import { ApiError } from './api/error';
import { connection } from './api/connection';
import { router } from './router';
import { Invitation } from './access/invitation';
import { SessionGate } from './session/gate';
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
connection.onBack = () => void client.invalidateQueries();

const element = document.getElementById('root');
if (element) {
  createRoot(element).render(
    <StrictMode>
      <MantineProvider
        theme={theme}
        defaultColorScheme="auto"
        withCssVariables={false}
        withGlobalClasses={false}
      >
        <QueryClientProvider client={client}>
          {location.pathname === '/console/invitation' ? (
            <Invitation />
          ) : (
            <SessionGate>
              <RouterProvider router={router} />
            </SessionGate>
          )}
        </QueryClientProvider>
      </MantineProvider>
    </StrictMode>,
  );
}
