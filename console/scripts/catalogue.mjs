// Writes src/live/catalogue.json, src/live/reasons.json and src/endpoints/secret-fields.json from the references of events and of
// traffic policies: what the API does not tell, but the field picker, the completion of filters and the masks of secrets need.
// And src/api/collections.json from the OpenAPI document: what the first page needs of it, which would be its largest part.
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { runnerImport } from 'vite';

const reference = (name) =>
  readFileSync(
    new URL(`../../docs/reference/${name}.md`, import.meta.url),
    'utf8',
  );

const fields = {};
const reasons = {};
let kind = '';
for (const line of reference('events').split('\n')) {
  if (line.startsWith('## ')) kind = line.slice(3).trim();
  const cells = line.split('|').map((cell) => cell.trim());
  const name = /^`([\w.]+)`$/.exec(cells[1] ?? '')?.[1];
  if (name && kind === 'Reasons') reasons[name] = cells[2].replaceAll('`', '');
  if (name && cells.length === 7) {
    (fields[kind] ??= []).push({
      name,
      filterable: cells[3] === 'yes',
      meaning: cells[5].replaceAll('`', ''),
    });
  }
}
const secrets = [
  ...reference('traffic-policy').matchAll(
    /^\| `(\w+)` \|.* Encrypted at rest\. \|$/gm,
  ),
].map((match) => match[1]);
const write = (path, value) =>
  writeFileSync(
    new URL(`../src/${path}.json`, import.meta.url),
    `${JSON.stringify(value, null, 1)}\n`,
  );
write('live/catalogue', { fields });
write('live/reasons', reasons);
write('endpoints/secret-fields', [...new Set(secrets)].toSorted());

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const { module } = await runnerImport(here('../src/api/model.ts'), {
  configFile: false,
});
const document = JSON.parse(
  readFileSync(here('../../docs/openapi.json'), 'utf8'),
);
write(
  'api/collections',
  [...module.buildModel(document).resources.values()].map(
    ({ name, listKey, list, create }) => ({
      name,
      listKey,
      list: list.id,
      ...(create ? { create: create.id } : {}),
    }),
  ),
);
