import react from '@vitejs/plugin-react';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vite';

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));

/** The page that agents serve on loopback: one script, one style sheet, below the console's bundle. */
export default defineConfig({
  base: '/inspect/',
  publicDir: here('./src/public'),
  plugins: [react()],
  resolve: {
    alias: {
      '@': here('./src'),
      // In this order: the first that fits counts.
      'react/jsx-runtime': 'preact/jsx-runtime',
      'react-dom/client': 'preact/compat/client',
      'react-dom': 'preact/compat',
      react: here('./src/preact/react.js'),
    },
  },
  build: {
    outDir: here('../crates/culvert-console/dist/agent'),
    emptyOutDir: true,
    cssCodeSplit: false,
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 700,
    rolldownOptions: {
      input: here('./agent.html'),
      output: {
        entryFileNames: 'assets/agent.js',
        chunkFileNames: 'assets/[name].js',
        assetFileNames: ({ names }) =>
          names[0]?.endsWith('.css')
            ? 'assets/agent.css'
            : 'assets/[name][extname]',
      },
    },
  },
});
