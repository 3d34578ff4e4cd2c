// Writes src/live/catalogue.json and src/live/reasons.json from the references of events and of traffic policies: what the API does not tell, but
// the field picker and the completion of the editors need.
import { readFileSync, writeFileSync } from 'node:fs';

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
const actions = [
  ...reference('traffic-policy').matchAll(/^### ([a-z][a-z-]+)$/gm),
].map((match) => match[1]);
const write = (name, value) =>
  writeFileSync(
    new URL(`../src/live/${name}.json`, import.meta.url),
    `${JSON.stringify(value, null, 1)}\n`,
  );
write('catalogue', { fields, actions: [...new Set(actions)].toSorted() });
write('reasons', reasons);
