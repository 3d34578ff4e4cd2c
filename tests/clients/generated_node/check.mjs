// The OpenAPI documents of a server under the linters redocly and spectral, without errors and warnings; then the types
// that openapi-typescript makes of them, and ten operations of openapi-fetch with these types. The first argument is the
// folder with the packages.
import { execFile } from 'node:child_process';
import { cp, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';

const packages = process.argv[2];
const here = import.meta.dirname;
const run = promisify(execFile);
const folder = await mkdtemp(join(tmpdir(), 'culvert-'));

/** Runs a program of the packages. What it prints is the error if it fails. */
async function program(name, ...args) {
  const path = join(packages, 'node_modules/.bin', name);
  const env = { ...process.env, REDOCLY_TELEMETRY: 'off', REDOCLY_SUPPRESS_UPDATE_NOTICE: 'true' };
  try {
    return await run(path, args, { cwd: folder, env, maxBuffer: 1 << 26 });
  } catch (error) {
    throw new Error(`${name} ${args.join(' ')}:\n${error.stdout}\n${error.stderr}`);
  }
}

/** What redocly has to say of a document. */
async function redocly(file) {
  const config = join(here, 'redocly.yaml');
  const { stdout } = await program('redocly', 'lint', file, `--config=${config}`, '--format=json', '--max-problems=50');
  return JSON.parse(stdout.slice(stdout.indexOf('{'))).problems;
}

/** What spectral has to say of a document. */
async function spectral(file) {
  const { stdout } = await program('spectral', 'lint', file, `--ruleset=${join(here, 'spectral.yaml')}`, '--format=json', '--quiet');
  return JSON.parse(stdout);
}

async function lint(name) {
  const response = await fetch(process.env.CULVERT_API_URL + '/' + name);
  await writeFile(join(folder, name), await response.text());
  const problems = (await Promise.all([redocly(name), spectral(name)])).flat();
  if (problems.length > 0) throw new Error(`${name}: ${JSON.stringify(problems, null, 1)}`);
}

try {
  await Promise.all(['openapi.json', 'openapi-3.0.json'].map(lint));
  console.log('redocly and spectral: no errors or warnings in OpenAPI 3.1 and 3.0');
  await symlink(join(packages, 'node_modules'), join(folder, 'node_modules'));
  await cp(join(here, 'client.ts'), join(folder, 'client.ts'));
  await cp(join(here, 'tsconfig.json'), join(folder, 'tsconfig.json'));
  await writeFile(join(folder, 'package.json'), '{"type": "module"}');
  for (const name of ['openapi-3.0.json', 'openapi.json']) {
    await program('openapi-typescript', name, '-o', 'api.d.ts');
    await program('tsc', '--project', '.');
  }
  const { stdout } = await run('node', [join(folder, 'client.js')]);
  process.stdout.write(stdout);
} finally {
  await rm(folder, { recursive: true });
}
