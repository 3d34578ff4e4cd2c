import react from '@vitejs/plugin-react';
import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vite';

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));

/** The server embeds the bundle, so every file has a stable name; its content hash is the ETag. */
export default defineConfig({
  base: '/console/',
  publicDir: here('./src/public'),
  plugins: [react()],
  resolve: { alias: { '@': here('./src') } },
  build: {
    outDir: here('../crates/culvert-console/dist'),
    emptyOutDir: true,
    cssCodeSplit: false,
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    rolldownOptions: {
      output: {
        codeSplitting: {
          groups: [
            { name: 'editor', test: /node_modules\/(@codemirror|@lezer|@marijn|style-mod|crelt|w3c-keyname)\// },
            { name: 'vendor', test: /node_modules\// },
            { name: 'live', test: /src\/live\/(?!catalogue)/ },
            { name: 'resources', test: /src\/(resources|events|domains|endpoints)\/|src\/live\/catalogue/ },
          ],
        },
        entryFileNames: 'assets/app.js',
        chunkFileNames: 'assets/[name].js',
        assetFileNames: ({ names }) => (names[0]?.endsWith('.css') ? 'assets/app.css' : 'assets/[name][extname]'),
      },
    },
  },
  server: {
    port: Number(process.env.PORT ?? 5173),
    proxy: {
      '/console/session': process.env.CULVERT_DEV_SERVER ?? 'http://127.0.0.1:5180',
      '/console/api': process.env.CULVERT_DEV_SERVER ?? 'http://127.0.0.1:5180',
      '/openapi.json': process.env.CULVERT_DEV_SERVER ?? 'http://127.0.0.1:5180',
    },
  },
});
