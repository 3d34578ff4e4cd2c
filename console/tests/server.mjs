// Servers of a test alone: started, killed and started again on the same ports, on SQLite or on a PostgreSQL database.
import { execFile, spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { randomBytes, randomInt } from 'node:crypto';
import { createServer, connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';

export const program = process.env.CULVERT_PROGRAM;
export const postgres = process.env.CULVERT_TEST_POSTGRES_URL;
const FREE = '127.0.0.1:0';
/** Runs a program, and answers with what it printed. */
export const run = async (name, args, options = {}) =>
  (await promisify(execFile)(name, args, options)).stdout;
/** Ports below those that systems give to connections, so that a server finds its port free when it starts again. */
const PORTS = { first: 20_000, count: 12_000 };

/** A range of ports for TCP endpoints of one server: below the ports of all servers. */
export function tcpPorts() {
  const first = 10_000 + 10 * randomInt(900);
  return `${first}-${first + 9}`;
}

async function freeAddress() {
  for (;;) {
    const port = PORTS.first + randomInt(PORTS.count);
    const probe = createServer();
    const isFree = await new Promise((resolve) => {
      probe
        .once('error', () => resolve(false))
        .listen(port, '127.0.0.1', () => probe.close(() => resolve(true)));
    });
    if (isFree) return `127.0.0.1:${port}`;
  }
}

/** The environment without settings of culvert. */
const environment = () =>
  Object.fromEntries(
    Object.entries(process.env).filter(
      ([name]) => !name.startsWith('CULVERT_'),
    ),
  );

/** What a command of culvert prints. */
export function culvert(...command) {
  return run(program, command, { env: environment() });
}

/** A server; `options` are further flags. */
export class Server {
  #options;
  #child;
  #addresses = {};

  constructor(folder, options = []) {
    this.folder = folder;
    this.#options = options;
  }

  static async start(
    options = [],
    folder = mkdtempSync(join(tmpdir(), 'culvert-test-')),
  ) {
    const server = new Server(folder, options);
    await server.start();
    return server;
  }

  /** Starts it, or starts it again with the addresses that it had. */
  async start() {
    for (const name of ['api', 'edge-http'])
      this.#addresses[name] ??= await freeAddress();
    const flags = [
      'api',
      'edge-http',
      'edge-https',
      'agents',
      'agents-ssh',
      'metrics',
      ...(this.#options.includes('--database-url') ? ['nodes'] : []),
    ].flatMap((name) => [`--${name}-addr`, this.#addresses[name] ?? FREE]);
    this.#child = spawn(
      program,
      [
        'serve',
        '--data-dir',
        join(this.folder, 'data'),
        ...flags,
        ...this.#options,
      ],
      {
        env: environment(),
        cwd: this.folder,
        stdio: ['ignore', 'pipe', 'pipe'],
      },
    );
    let log = '';
    this.#child.stderr.on('data', (piece) => {
      log = `${log}${piece}`.slice(-2000);
    });
    let ready;
    for await (const line of createInterface({ input: this.#child.stdout })) {
      if (!line.startsWith('culvert ready')) continue;
      ready = Object.fromEntries(
        line
          .split(' ')
          .slice(2)
          .map((part) => part.split('=')),
      );
      break;
    }
    if (!ready && !this.listeners && log.includes('Address already in use')) {
      // Another program took an address that was free.
      this.#addresses = {};
      return this.start();
    }
    if (!ready) throw new Error(`the server did not start: ${log}`);
    this.#child.stdout.resume();
    /** Where it accepts, such as `127.0.0.1:8443`, by the name of the listener. */
    this.listeners = ready;
    const { port } = new URL(ready.api);
    // Without TLS the session's cookie is set on a loopback name alone.
    this.url = `http://localhost:${port}`;
    this.token ??= readFileSync(
      join(this.folder, 'data/bootstrap-key'),
      'utf8',
    ).trim();
  }

  /** A call of the management API with a key. */
  async call(method, path, body) {
    const response = await fetch(`http://${this.#addresses.api}${path}`, {
      method,
      headers: {
        authorization: `Bearer ${this.token}`,
        'content-type': 'application/json',
      },
      ...(body ? { body: JSON.stringify(body) } : {}),
    });
    const text = await response.text();
    return { status: response.status, body: text ? JSON.parse(text) : null };
  }

  async make(collection, body) {
    const create = () => this.call('POST', `/${collection}`, body);
    let { status, body: made } = await create();
    // A busy server refuses before it does anything, and says how long to wait in its message alone.
    while (status === 503 && /try again/.test(made.msg)) {
      await new Promise((resolve) => setTimeout(resolve, 1_000));
      ({ status, body: made } = await create());
    }
    if (status !== 201) throw new Error(`${collection}: ${status} ${made.msg}`);
    return made;
  }

  /** Ends it as a crash does. */
  async kill() {
    await this.#end('SIGKILL');
  }

  async stop() {
    await this.#end('SIGINT');
  }

  async #end(signal) {
    const child = this.#child;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const ended = new Promise((resolve) => {
      child.once('exit', resolve);
    });
    child.kill(signal);
    await ended;
  }

  async remove() {
    await this.kill();
    rmSync(this.folder, { recursive: true, force: true });
  }
}

/** A database at the PostgreSQL server of the tests, behind a relay that can be cut. */
export class Database {
  #sockets = new Set();
  #relay;
  #port;

  static async create() {
    const database = new Database();
    database.name = `console_${randomBytes(6).toString('hex')}`;
    await run('psql', [
      '-q',
      postgres,
      '-c',
      `create database ${database.name}`,
    ]);
    await database.connect();
    const keys = mkdtempSync(join(tmpdir(), 'culvert-key-'));
    database.key = join(keys, 'key');
    writeFileSync(database.key, `${randomBytes(32).toString('hex')}\n`, {
      mode: 0o600,
    });
    return database;
  }

  get url() {
    const url = new URL(postgres);
    url.host = `127.0.0.1:${this.#port}`;
    url.pathname = `/${this.name}`;
    return url.href;
  }

  /** Lets connections through. */
  async connect() {
    const { hostname, port } = new URL(postgres);
    this.#relay = createServer((incoming) => {
      const outgoing = connect(Number(port || 5432), hostname);
      for (const socket of [incoming, outgoing]) {
        this.#sockets.add(socket);
        socket
          .on('error', () => {})
          .on('close', () => {
            this.#sockets.delete(socket);
            incoming.destroy();
            outgoing.destroy();
          });
      }
      incoming.pipe(outgoing).pipe(incoming);
    });
    await new Promise((resolve) => {
      this.#relay.listen(this.#port ?? 0, '127.0.0.1', resolve);
    });
    this.#port = this.#relay.address().port;
  }

  /** Ends all connections, and refuses others. */
  cut() {
    this.#relay.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  /** Runs a statement, not through the relay. */
  async run(statement) {
    const url = new URL(postgres);
    url.pathname = `/${this.name}`;
    await run('psql', [
      '-q',
      '-v',
      'ON_ERROR_STOP=1',
      url.href,
      '-c',
      statement,
    ]);
  }

  async drop() {
    this.cut();
    await run('psql', [
      '-q',
      postgres,
      '-c',
      `drop database ${this.name} with (force)`,
    ]);
  }
}
