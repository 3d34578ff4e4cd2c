// Writes dist/MANIFEST: a hash of every source file that the bundle is made of, so that a test without Node can tell
// whether the committed bundle is that of the committed sources. And beside every file of the bundle its Brotli form.
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { brotliCompressSync, constants } from 'node:zlib';

const root = fileURLToPath(new URL('..', import.meta.url));
const single = [
  'agent.html',
  'index.html',
  'package-lock.json',
  'package.json',
  'tsconfig.json',
  'vite.agent.config.ts',
  'vite.config.ts',
];

const files = (folder) =>
  readdirSync(join(root, folder), { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile())
    .map((entry) =>
      join(entry.parentPath ?? entry.path, entry.name).slice(root.length),
    );

const paths = [...single, ...files('src')];
paths.sort((a, b) => (a < b ? -1 : 1));
const lines = paths.map(
  (path) =>
    `${createHash('sha256')
      .update(readFileSync(join(root, path)))
      .digest('hex')}  ${path}\n`,
);
writeFileSync(
  join(root, '../crates/culvert-console/dist/MANIFEST'),
  lines.join(''),
);

const dist = fileURLToPath(
  new URL('../../crates/culvert-console/dist/', import.meta.url),
);
const { BROTLI_PARAM_QUALITY, BROTLI_PARAM_SIZE_HINT } = constants;
for (const name of readdirSync(dist, { recursive: true }).map(String)) {
  if (!/\.(html|js|css|svg)$/.test(name)) continue;
  const bytes = readFileSync(join(dist, name));
  const packed = brotliCompressSync(bytes, {
    params: {
      [BROTLI_PARAM_QUALITY]: 11,
      [BROTLI_PARAM_SIZE_HINT]: bytes.length,
    },
  });
  writeFileSync(join(dist, `${name}.br`), packed);
}
