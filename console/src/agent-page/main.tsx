import '@/theme/mantine';
import '@/theme/more.css';
import '@/theme/theme.css';
import { MantineProvider } from '@mantine/core';
import { StrictMode } from 'react';
import { createRoot } from 'react-dom/client';
import { theme } from '@/theme/theme';
import { Toast } from '@/ui/toast';
import { AgentPage } from './page';

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
        <AgentPage />
        <Toast />
      </MantineProvider>
    </StrictMode>,
  );
}
