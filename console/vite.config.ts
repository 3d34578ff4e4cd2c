import react from '@vitejs/plugin-react';
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { type Plugin, defineConfig } from 'vite';

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));

const START =
  /preload-helper|src\/session\/(form|calls|ask|link|early)\.|src\/api\/(error|http|connection)\.|src\/ui\/clipboard\./;
/** What the overview and the frame around it are made of, as one file: a signed-in person waits for it. */
const FIRST =
  /node_modules\/(preact|@tanstack\/(query-core(?!.*\/(infinite|queriesObserver|mutationObserver|streamedQuery|hydration))|react-query(?!.*\/(useQueries|useSuspenseQueries|useInfinite|useMutation|useIsFetching|HydrationBoundary|infinite))))\/|src\/(preact\/|routing\/|theme\/(?!styled|theme\.ts)|console\.tsx|router\.tsx|shell\/(shell|nav|groups|account)\.|overview\/(?!checklist)|charts\/(charts\.module|subject-charts|plot|chart|units|queries|series|range-choice)\.|api\/(collections|words|build|load|json|client)\.|session\/(gate|rights|session|sign-in|roles)\.|live\/(tail|sse|use-tail|where|entry|viewer)\.|nodes\/(lost-nodes|queries|levels)\.|events\/(health-cell|health-tag|queries|destination-rights)\.|resources\/(names|queries)\.|ui\/(ui\.module|button|states|time|icons|page|copy|toast|escaped|choice|breakable|link-button)\.)/;
const EDITOR =
  /node_modules\/(@codemirror|@lezer|@marijn|style-mod|crelt|w3c-keyname)\//;
const RESTRICTION =
  /node_modules\/yaml\/|src\/endpoints\/(restrict|policy-text)/;
const VIRTUAL = /@tanstack\/(react-virtual|virtual-core)\//;
const FORMS =
  /src\/resources\/(fields|form-|map-|reference-|shown-|create-|edit-|action-panel)|src\/events\/field-picker|catalogue\.json|node_modules\/(@floating-ui|react-number-format|@mantine\/core\/esm\/components\/(Combobox|Select|MultiSelect|TagsInput|NumberInput|Pill|PillsInput|Popover)\/)/;

/** The files that are copied as they are, which pages name too. */
const copied = new Map(
  readdirSync(here('./src/public/assets'))
    .toSorted()
    .map((name) => [name, readFileSync(here(`./src/public/assets/${name}`))]),
);

const HELPER = 'assets/rolldown-runtime.js';

/** The bundler's helper has a file of its own, of a hundred bytes. In the files that use it, it costs no request. */
const withHelper = (): Plugin => ({
  name: 'with-helper',
  enforce: 'post',
  generateBundle: {
    order: 'post',
    handler(_options, bundle) {
      const helper = bundle[HELPER];
      const [, body, made] =
        /^(.*)export\{(\w+)\};\s*$/s.exec(
          helper?.type === 'chunk' ? helper.code : '',
        ) ?? [];
      if (!body) throw new Error(`There is no ${HELPER}, or another one.`);
      for (const file of Object.values(bundle)) {
        if (file.type !== 'chunk' || file === helper) continue;
        file.code = file.code
          .replace(
            /import\{\w+ as (\w+)\}from(["'])\.\/rolldown-runtime\.js\2;/,
            (_, name: string) => `var ${name}=(()=>{${body}return ${made}})();`,
          )
          .replaceAll(HELPER, 'assets/start.js');
        if (file.code.includes('rolldown-runtime'))
          throw new Error(`${file.fileName} imports the helper otherwise.`);
      }
      delete bundle[HELPER];
    },
  },
});

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

/** Files that the page of a signed-in person needs at once, which the browser would find one after the other. */
const STYLES = ['app.css'];
const AHEAD = ['first.js'];

/** A second page for browsers with a session: it names the files above, so that all of them are asked for at the same time. */
const withAhead = (): Plugin => ({
  name: 'with-ahead',
  enforce: 'post',
  generateBundle: {
    order: 'post',
    handler(_options, bundle) {
      const page = bundle['index.html'];
      if (page?.type !== 'asset') throw new Error('There is no page.');
      const ahead = AHEAD.map((name) => {
        if (!bundle[`assets/${name}`]) throw new Error(`There is no ${name}.`);
        return `    <link rel="modulepreload" crossorigin href="/console/assets/${name}">\n`;
      });
      // A browser without HTTP/2 asks for six files at a time: the largest are among them.
      this.emitFile({
        type: 'asset',
        fileName: 'signed-in.html',
        source: String(page.source)
          .replace('    <link rel="icon"', `${ahead.join('')}$&`)
          .replace(
            '  </head>',
            `${STYLES.map((name) => `    <link rel="stylesheet" crossorigin href="/console/assets/${name}">\n`).join('')}$&`,
          ),
      });
    },
  },
});

/** The server embeds the bundle, so every file has a stable name; its content hash is the ETag. */
export default defineConfig({
  base: '/console/',
  publicDir: here('./src/public'),
  plugins: [react(), withHelper(), withAhead(), withBuild()],
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
            { name: 'first', test: FIRST },
            { name: 'editor', test: EDITOR },
            { name: 'virtual', test: VIRTUAL },
            {
              name: 'mutations',
              test: /@tanstack\/.*\/(mutationObserver|useMutation)\./,
            },
            // The rest of the libraries: fields, tabs, and panels over the page.
            {
              name: 'panels',
              test: (id) =>
                /node_modules\//.test(id) &&
                !FORMS.test(id) &&
                !RESTRICTION.test(id),
            },
            {
              name: 'shared',
              test: /src\/(api|ui|session|theme)\/(?!code-editor)|src\/resources\/(use-resource|value|columns|custom)|src\/live\/(kept|facts)\.|src\/shell\/(not-found|other-names)/,
            },
            { name: 'forms', test: FORMS },
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
          names[0] === 'first.css'
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
