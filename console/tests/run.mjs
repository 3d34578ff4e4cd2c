// Runs the suite with one browser for all files: several files at a time, and those that measure alone at the end.
import { spawn } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';
import { serve } from './browser.mjs';

/** Tests wait for servers and pages, so more of them run than there are processors. */
const WORKERS = 2 * availableParallelism();
/** They measure the browser or the server, so nothing else may run. */
const ALONE = ['speed.test.mjs'];

const here = fileURLToPath(new URL('.', import.meta.url));
const wanted = process.argv.slice(2);
const files = readdirSync(here).filter((name) => name.endsWith('.test.mjs') && (wanted.length === 0 || wanted.some((part) => name.includes(part))));
// The longest begin first.
const FIRST = ['states', 'wizard', 'long-list', 'tasks', 'twelve', 'proof', 'agent', 'access'];
const place = (name) => (FIRST.findIndex((part) => name.startsWith(part)) + 1 || FIRST.length + 1);
files.sort((a, b) => place(a) - place(b));

const browser = await serve();
const run = (names, workers) => new Promise((resolve) => {
  if (names.length === 0) return resolve(0);
  const started = performance.now();
  const child = spawn(process.execPath, ['--test', `--test-concurrency=${workers}`, ...names.map((name) => here + name)], {
    stdio: 'inherit', env: { ...process.env, CULVERT_BROWSER: browser.wsEndpoint() },
  });
  child.once('exit', (code) => {
    console.log(`# ${names.length} files, ${workers} at a time: ${((performance.now() - started) / 1000).toFixed(1)} s`);
    resolve(code ?? 1);
  });
});
const codes = [
  await run(files.filter((name) => !ALONE.includes(name)), WORKERS),
  await run(files.filter((name) => ALONE.includes(name)), 1),
];
await browser.close();
process.exitCode = Math.max(...codes);
