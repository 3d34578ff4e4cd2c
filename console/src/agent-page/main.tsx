import '@/theme/more.css';
import '@/theme/theme.css';
import { StrictMode } from 'react';
import { createRoot } from 'react-dom/client';
import { Styled } from '@/theme/styled';
import { Toast } from '@/ui/toast';
import { AgentPage } from './page';

const element = document.getElementById('root');
if (element) {
  createRoot(element).render(
    <StrictMode>
      <Styled>
        <AgentPage />
        <Toast />
      </Styled>
    </StrictMode>,
  );
}
