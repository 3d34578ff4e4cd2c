import { createTheme, type MantineColorsTuple } from '@mantine/core';

/** The one accent: water under stone. Its other variables are in theme.css, because the page takes no injected styles. */
const reed: MantineColorsTuple = [
  '#edf6f3',
  '#d8ebe5',
  '#b3d8cd',
  '#8ac4b3',
  '#66b19c',
  '#449a83',
  '#2f8571',
  '#1d6b5f',
  '#17574d',
  '#10433b',
];

export const theme = createTheme({
  primaryColor: 'reed',
  primaryShade: 7,
  colors: { reed },
  defaultRadius: 'sm',
  cursorType: 'pointer',
  respectReducedMotion: true,
  components: {
    Modal: {
      defaultProps: {
        lockScroll: false,
        centered: true,
        closeButtonProps: { 'aria-label': 'Close' },
      },
    },
    Drawer: {
      defaultProps: {
        lockScroll: false,
        position: 'right',
        closeButtonProps: { 'aria-label': 'Close' },
      },
    },
  },
});
