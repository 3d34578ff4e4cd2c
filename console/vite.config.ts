import react from '@vitejs/plugin-react';
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { type Plugin, defineConfig } from 'vite';

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));

const START =
  /preload-helper|src\/session\/(form|calls|ask|link|early)\.|src\/api\/(error|http|connection)\.|src\/ui\/clipboard\./;
const EDITOR =
  /node_modules\/(@codemirror|@lezer|@marijn|style-mod|crelt|w3c-keyname)\//;
const RESTRICTION =
  /node_modules\/yaml\/|src\/endpoints\/(restrict|policy-text)/;
const VIRTUAL = /@tanstack\/(react-virtual|virtual-core)\//;
const FORMS =
  /src\/resources\/(fields|form-|map-|reference-|shown-|create-|edit-|action-panel)|src\/events\/field-picker|catalogue\.json|node_modules\/(@floating-ui|react-number-format|@mantine\/core\/esm\/components\/(Combobox|Select|MultiSelect|TagsInput|NumberInput|Pill|PillsInput|Popover)\/)/;

/** What the first page has none of: fields, tabs, and panels over the page. */
const PANELS =
  /node_modules\/(@floating-ui|react-remove-scroll|react-style-singleton|use-callback-ref|use-sidecar|tslib|get-nonce|@mantine\/core\/esm\/(utils\/(Floating|InlineInput|InputsGroupFieldset)|components\/(Checkbox|CloseButton|Drawer|FocusTrap|Input|InputBase|Modal|ModalBase|Overlay|Paper|Portal|ScrollArea|Tabs|TextInput|Textarea|VisuallyHidden)))\//;

/** The files that are copied as they are, which pages name too. */
const copied = new Map(
  readdirSync(here('./src/public/assets'))
    .toSorted()
    .map((name) => [name, readFileSync(here(`./src/public/assets/${name}`))]),
);

/** Every file is asked for with the hash of the whole build, so that a page gets files of its own build or none. */
const withBuild = (): Plugin => ({
  name: 'with-build',
  enforce: 'post',
  generateBundle: {
    order: 'post',
    handler(_options, bundle) {
      const files = Object.values(bundle).toSorted((a, b) =>
        a.fileName < b.fileName ? -1 : 1,
      );
      const hash = createHash('sha256');
      for (const file of files)
        hash.update(file.type === 'chunk' ? file.code : file.source);
      for (const content of copied.values()) hash.update(content);
      const build = hash.digest('hex').slice(0, 16);
      const named = (text: string) =>
        text.replaceAll(
          /(["'`])((?:\.|assets|\/console\/assets)\/[\w-]+\.(?:js|css))\1/g,
          (whole, quote: string, path: string) => {
            const name = path.split('/').at(-1) ?? '';
            return bundle[`assets/${name}`] || copied.has(name)
              ? `${quote}${path}?v=${build}${quote}`
              : whole;
          },
        );
      for (const file of files) {
        if (file.type === 'chunk') file.code = named(file.code);
        else if (file.fileName.endsWith('.html'))
          file.source = named(String(file.source));
      }
    },
  },
});

/** The server embeds the bundle, so every file has a stable name; its content hash is the ETag. */
export default defineConfig({
  base: '/console/',
  publicDir: here('./src/public'),
  plugins: [react(), withBuild()],
  resolve: { alias: { '@': here('./src') } },
  build: {
    outDir: here('../crates/culvert-console/dist'),
    emptyOutDir: true,
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 700,
    rolldownOptions: {
      output: {
        codeSplitting: {
          groups: [
            // The entry needs no library: nothing of it may be in a chunk that does.
            { name: 'start', test: START },
            { name: 'style', test: /\.css$/ },
            { name: 'editor', test: EDITOR },
            {
              name: 'vendor',
              test: (id) =>
                /node_modules\//.test(id) &&
                !FORMS.test(id) &&
                !PANELS.test(id) &&
                !VIRTUAL.test(id) &&
                !RESTRICTION.test(id),
            },
            {
              name: 'shared',
              test: /src\/(api|ui|session|theme)\/(?!code-editor)|src\/resources\/(names|queries|use-resource|value|columns|custom)|src\/live\/(tail|sse|use-tail|entry|viewer|where|kept|facts)\.|src\/events\/(health-tag|health-cell|queries)\.|src\/shell\/(not-found|other-names|groups)/,
            },
            { name: 'charts', test: /src\/charts\// },
            { name: 'panels', test: (id) => PANELS.test(id) },
            { name: 'forms', test: (id) => FORMS.test(id) },
            { name: 'virtual', test: VIRTUAL },
            { name: 'restriction', test: RESTRICTION },
            {
              name: 'live',
              test: /src\/live\/(traffic|audit|live-|event-|messages|timeline|use-timeline|search-box|terms|narrow|event-facts|connection|reasons|proof|raw-json|changes)|src\/inspect\//,
            },
            {
              name: 'events',
              test: /src\/events\/(destination|dead|replay|health\.tsx|subscription)/,
            },
            { name: 'access', test: /src\/access\/(key|user|ip-|owner)/ },
            {
              name: 'resources',
              test: /src\/(resources|events|domains|endpoints|live)\//,
            },
          ],
        },
        entryFileNames: 'assets/app.js',
        chunkFileNames: 'assets/[name].js',
        assetFileNames: ({ names }) =>
          names[0]?.endsWith('.css')
            ? 'assets/app.css'
            : 'assets/[name][extname]',
      },
    },
  },
  server: {
    port: Number(process.env.PORT ?? 5173),
    proxy: {
      '/console/session':
        process.env.CULVERT_DEV_SERVER ?? 'http://127.0.0.1:5180',
      '/console/api': process.env.CULVERT_DEV_SERVER ?? 'http://127.0.0.1:5180',
      '/openapi.json':
        process.env.CULVERT_DEV_SERVER ?? 'http://127.0.0.1:5180',
    },
  },
});
