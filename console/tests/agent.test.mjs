// The agent's page: the real agent in front of a service of this test, at the real server.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';
import { brotliCompressSync, gzipSync } from 'node:zlib';
import { launch, until } from './browser.mjs';

const axe = readFileSync(
  createRequire(import.meta.url).resolve('axe-core/axe.min.js'),
  'utf8',
);
const HOST = 'page.culvert.localhost';
const PICTURE = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==',
  'base64',
);
const LONG = JSON.stringify({
  big: 12345678901234567890n.toString(),
  text: 'gzip "quoted"',
  list: [1, [], {}],
}).replace('"12345678901234567890"', '12345678901234567890');

let browser, agent, service, base;
const got = [];

function answer(request, response) {
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', () => {
    const body = Buffer.concat(parts).toString();
    got.push({
      method: request.method,
      url: request.url,
      headers: request.headers,
      body,
    });
    const send = (type, content, fields = {}) =>
      response.writeHead(200, { 'content-type': type, ...fields }).end(content);
    if (request.url.startsWith('/gzip'))
      return send('application/json', gzipSync(LONG), {
        'content-encoding': 'gzip',
      });
    if (request.url.startsWith('/br'))
      return send('text/plain', brotliCompressSync('written with brotli'), {
        'content-encoding': 'br',
      });
    if (request.url.startsWith('/picture')) return send('image/png', PICTURE);
    if (request.url.startsWith('/markup'))
      return send(
        'text/html',
        '<img src=x onerror="globalThis.hit = 1"><script>globalThis.hit = 1</script>',
      );
    if (request.url.startsWith('/bytes'))
      return send('application/octet-stream', Buffer.from([0, 1, 2, 255]));
    return send('application/json', JSON.stringify({ url: request.url, body }));
  });
}

before(async () => {
  browser = await launch();
  service = createServer(answer).listen(0, '127.0.0.1');
  await new Promise((done) => service.once('listening', done));
  const made = await fetch(`${process.env.CULVERT_API_URL}/credentials`, {
    method: 'POST',
    body: '{}',
    headers: {
      authorization: `Bearer ${process.env.CULVERT_API_KEY}`,
      'content-type': 'application/json',
    },
  });
  const { token } = await made.json();
  const variables = Object.entries(process.env).filter(
    ([name]) => !name.startsWith('CULVERT_'),
  );
  agent = spawn(
    process.env.CULVERT_PROGRAM,
    [
      'http',
      String(service.address().port),
      '--url',
      `http://${HOST}`,
      '--inspect-addr',
      '127.0.0.1:0',
      '--log',
      'stdout',
      '--log-format',
      'json',
    ],
    {
      env: {
        ...Object.fromEntries(variables),
        CULVERT_AUTHTOKEN: token,
        CULVERT_SERVER: process.env.CULVERT_AGENTS,
        CULVERT_CA_FILE: process.env.CULVERT_CA,
      },
      stdio: ['ignore', 'pipe', 'inherit'],
    },
  );
  for await (const line of createInterface({ input: agent.stdout })) {
    const said = JSON.parse(line);
    if (said.message.startsWith('online')) {
      base = said.inspect;
      break;
    }
  }
  agent.stdout.resume();
});

after(async () => {
  agent?.kill();
  service?.close();
  service?.closeAllConnections();
  await browser?.close();
});

async function ask(path, options = {}) {
  const { request } = await import('node:http');
  const [host, port] = process.env.CULVERT_HTTP.split(':');
  return new Promise((done, fail) => {
    const sent = request(
      {
        host,
        port,
        path,
        agent: false,
        method: options.method ?? 'GET',
        headers: { ...options.headers, host: HOST },
      },
      (response) => {
        response.resume().on('end', () => done(response.statusCode));
      },
    );
    sent.on('error', fail).end(options.body);
  });
}

async function open({ width = 1280, scheme = 'light' } = {}) {
  const context = await browser.newContext({
    viewport: { width, height: 900 },
    colorScheme: scheme,
    reducedMotion: 'reduce',
  });
  context.setDefaultTimeout(60_000);
  const page = await context.newPage();
  const faults = [];
  page.on(
    'console',
    (message) =>
      message.type() === 'error' &&
      faults.push(`${message.text()} ${message.location().url}`),
  );
  page.on('pageerror', (error) => faults.push(error.stack));
  page.on('request', (request) => {
    if (!request.url().startsWith(base) && !request.url().startsWith('blob:'))
      faults.push(`elsewhere: ${request.url()}`);
  });
  return { page, context, faults };
}

const row = (page, name) =>
  page.getByRole('list', { name: 'Requests' }).getByRole('button', { name });
const body = (page, of = 'response') =>
  page.getByRole('group', { name: `Body of the ${of}` });

async function check(page) {
  await page.evaluate(axe);
  const found = await page.evaluate(async () => {
    const { violations } = await globalThis.axe.run(document, {
      resultTypes: ['violations'],
    });
    return violations.map(
      ({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(' ')}`,
    );
  });
  assert.deepEqual(found, []);
  const { wide, screen } = await page.evaluate(() => ({
    wide: document.documentElement.scrollWidth,
    screen: innerWidth,
  }));
  assert.ok(wide <= screen, `${wide} px on a screen of ${screen} px`);
}

test('requests appear, are decoded, filtered, sent again with changes, and cleared', async (t) => {
  const { page, context, faults } = await open();
  const loaded = [];
  page.on(
    'response',
    (response) =>
      response.url().includes('/api/') ||
      loaded.push(response.body().catch(() => Buffer.alloc(0))),
  );
  await page.goto(base);
  await page.getByText('No requests yet').waitFor();
  const bytes = (await Promise.all(loaded)).reduce(
    (sum, content) => sum + gzipSync(content).length,
    0,
  );
  t.diagnostic(`${bytes} bytes under gzip`);
  assert.ok(bytes > 20_000 && bytes < 250_000, `${bytes} bytes`);

  await ask('/gzip?a=1');
  await row(page, /gzip/).click();
  const pretty = await body(page).textContent();
  assert.ok(
    pretty.includes('\n  "big": 12345678901234567890,\n') &&
      pretty.includes('"list": [\n    1,\n    [],\n    {}\n  ]'),
    pretty,
  );
  await page.getByText('Decoded from gzip.').waitFor();
  await page.getByRole('button', { name: 'Raw' }).click();
  assert.equal(await body(page).textContent(), LONG);

  await ask('/br');
  await row(page, /\/br/).click();
  await page.getByText('written with brotli').waitFor();
  await ask('/picture');
  await row(page, /picture/).click();
  const picture = page.getByRole('img', {
    name: 'The response body as a picture',
  });
  await picture.waitFor();
  assert.equal(
    await picture.evaluate((image) =>
      image.decode().then(() => image.naturalWidth),
    ),
    1,
  );
  await ask('/bytes');
  await row(page, /bytes/).click();
  await page.getByText('0000  00 01 02 ff').waitFor();

  await ask('/edit?x=1', {
    method: 'POST',
    body: 'before',
    headers: { 'content-type': 'text/plain', 'x-old': '1' },
  });
  await row(page, /edit/).click();
  await page.getByRole('button', { name: 'Edit and replay' }).click();
  const form = page.getByRole('form', { name: 'Edit and replay' });
  assert.equal(await form.getByLabel('Body').inputValue(), 'before');
  await form.getByLabel('Method').fill('PUT');
  await form.getByLabel('Path').fill('/edited?x=2');
  const headers = await form.getByLabel('Headers').inputValue();
  await form
    .getByLabel('Headers')
    .fill(headers.replace(/x-old: 1/i, 'x-new: 2'));
  await form.getByLabel('Body').fill('after it');
  await form.getByRole('button', { name: 'Send' }).click();
  await page.getByRole('heading', { name: 'PUT /edited?x=2' }).waitFor();
  const edited = got.at(-1);
  assert.deepEqual(
    [
      edited.method,
      edited.url,
      edited.body,
      edited.headers['x-new'],
      edited.headers['x-old'],
    ],
    ['PUT', '/edited?x=2', 'after it', '2', undefined],
  );
  const before = got.length;
  await page.getByRole('button', { name: 'Replay', exact: true }).click();
  // The edited request is a replay too, so the page says it before.
  await until(
    () => got.length,
    (count) => count === before + 1,
  );
  await page.getByText(/replay of request/).waitFor();

  await page.getByLabel('Filter').fill('put 2xx edited');
  await page.waitForFunction(
    () => document.querySelectorAll('[aria-label="Requests"] li').length === 2,
  );
  for (const [words, count] of [
    ['put 5xx edited', 0],
    ['PUT /edited 200-299 < 60s', 2],
    ['/e*ed 2xx -GET >0ms', 2],
    ['/edited -PUT', 0],
    ['"/edited?x=2"', 2],
    ['method:put status:>=300 /edited', 0],
  ]) {
    await page.getByLabel('Filter').fill(words);
    await page.waitForFunction(
      (wanted) =>
        document.querySelectorAll('[aria-label="Requests"] li').length ===
        wanted,
      count,
    );
  }
  await page.getByLabel('Filter').fill('nothing like it');
  await page.getByText('No request matches the filter').waitFor();
  await page.getByLabel('Filter').fill('');
  await page.getByRole('button', { name: 'Clear' }).click();
  await page.getByText('No requests yet').waitFor();
  assert.deepEqual(faults, []);
  await context.close();
});

test('markup of a stranger stays text, failed requests say why, in both themes and at 360 px', async () => {
  await ask('/markup');
  for (const scheme of ['light', 'dark']) {
    const { page, context, faults } = await open({ scheme });
    const everywhere = async () => {
      for (const width of [360, 1280]) {
        await page.setViewportSize({ width, height: 900 });
        await check(page);
      }
    };
    await page.setViewportSize({ width: 360, height: 900 });
    await page.goto(base);
    await row(page, /markup/).waitFor();
    await everywhere();
    await page.setViewportSize({ width: 360, height: 900 });
    await row(page, /markup/).click();
    await page.getByText('<script>globalThis.hit = 1</script>').waitFor();
    await page.getByRole('button', { name: 'Edit and replay' }).click();
    await everywhere();
    assert.equal(await page.evaluate(() => globalThis.hit), undefined);
    assert.equal(
      await page.evaluate(() =>
        document.documentElement.getAttribute('data-mantine-color-scheme'),
      ),
      scheme,
    );
    await page
      .getByRole('button', { name: /^Use (dark|light) colours$/ })
      .click();
    await page.waitForFunction(
      (was) =>
        document.documentElement.getAttribute('data-mantine-color-scheme') !==
        was,
      scheme,
    );
    await everywhere();
    assert.deepEqual(faults, []);
    await context.close();
  }
  const { port } = service.address();
  service.close();
  service.closeAllConnections();
  assert.equal(await ask('/down'), 502);
  const { page, context, faults } = await open();
  await page.goto(base);
  await row(page, /down.*502/).click();
  await page
    .getByRole('alert')
    .getByText('the service is unreachable')
    .waitFor();
  await check(page);
  // The service comes back, and the request is sent again.
  service = createServer(answer).listen(port, '127.0.0.1');
  await new Promise((done) => service.once('listening', done));
  await page.getByRole('button', { name: 'Replay', exact: true }).click();
  await page.getByText(/replay of request/).waitFor();
  assert.equal(got.at(-1).url, '/down');
  assert.deepEqual(faults, []);
  await context.close();
});

test('other sites can neither read nor change anything', async () => {
  const { port } = new URL(base);
  const asked = async (path, headers, method = 'GET') => {
    const { request } = await import('node:http');
    return new Promise((done, fail) => {
      const sent = request(
        { host: '127.0.0.1', port, path, method, headers },
        (response) => {
          response.resume();
          done(response);
        },
      );
      sent.on('error', fail).end();
    });
  };
  const own = await asked('/inspect/http', { host: `localhost:${port}` });
  assert.equal(own.statusCode, 200);
  const policy = own.headers['content-security-policy'];
  assert.ok(
    policy.includes("default-src 'none'") && !policy.includes('unsafe'),
    policy,
  );
  assert.equal(
    (await asked('/inspect/api/state', { host: `evil.example:${port}` }))
      .statusCode,
    403,
  );
  for (const headers of [
    { origin: 'http://evil.example' },
    { 'sec-fetch-site': 'cross-site' },
  ]) {
    const refused = await asked(
      '/api/requests/http',
      { host: `127.0.0.1:${port}`, ...headers },
      'DELETE',
    );
    assert.equal(refused.statusCode, 403);
  }
});
