// Runs the suite in one process with one browser: several files at a time, and those that measure alone at the end.
import { readdirSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { after, before, describe } from 'node:test';
import { launch } from './browser.mjs';

/** Tests wait for servers and pages, so more of them run than there are processors. */
const WORKERS = 2 * availableParallelism();
/** They measure the browser or the server, so nothing else may run. */
const ALONE = ['speed.test.mjs', 'long-list.test.mjs'];
/** The longest begin first. */
const FIRST = [
  'wizard',
  'states',
  'access',
  'layout',
  'tasks',
  'twelve',
  'agent',
  'proof',
  'kept',
  'resume',
];

const here = new URL('.', import.meta.url);
const wanted = process.argv.slice(2);
const files = readdirSync(here).filter(
  (name) =>
    name.endsWith('.test.mjs') &&
    (wanted.length === 0 || wanted.some((part) => name.includes(part))),
);
const place = (name) =>
  FIRST.findIndex((part) => name.startsWith(part)) + 1 || FIRST.length + 1;
files.sort((a, b) => place(a) - place(b));

/** A test belongs to the suite that imports its file. */
const suite = (name) =>
  describe(name, { concurrency: 1 }, async () => {
    await import(new URL(name, here));
  });

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());
describe('at the same time', { concurrency: WORKERS }, () => {
  for (const name of files) if (!ALONE.includes(name)) suite(name);
});
describe('alone', { concurrency: 1 }, () => {
  for (const name of files) if (ALONE.includes(name)) suite(name);
});
