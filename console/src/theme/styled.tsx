import { MantineProvider } from '@mantine/core';
import { createContext, type ReactNode, useContext } from 'react';
import { theme } from './theme';

const InStyled = createContext(false);

/** What components of the library need around them. The overview has none of these, so it does without. */
export function Styled({ children }: { children: ReactNode }) {
  if (useContext(InStyled)) return children;
  return (
    <InStyled value>
      <MantineProvider
        theme={theme}
        withCssVariables={false}
        withGlobalClasses={false}
        // The page has its colours already.
        getRootElement={() => undefined}
      >
        {children}
      </MantineProvider>
    </InStyled>
  );
}
