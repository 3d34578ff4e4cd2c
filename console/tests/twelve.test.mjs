// Twelve tasks that people come for, and some more: each from Overview, by mouse and typing, in at most five clicks. A click
// is a press of the mouse, or a choice in the palette; typing is free. The clicks and the seconds, with the server's own time
// and without that of a person, are in the table at the end.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { api, go, launch, open, signIn, until } from './browser.mjs';
import { program, Server } from './server.mjs';
import { upstream, visit } from './upstream.mjs';

const MOST = 5;
const run = Date.now() % 1_000_000;
const host = `twelve${run}.culvert.localhost`;
const rows = [];
let browser, page, server, service, receiver, agent, endpoint;
/** What the receiver of webhooks answers with, and what it got. */
let status = 204;
const received = [];

before(async () => {
  browser = await launch();
  if (!program) return;
  service = await upstream();
  receiver = createServer((request, response) => {
    let body = '';
    request.on('data', (part) => {
      body += part;
    });
    request.on('end', () => {
      received.push(body);
      response.writeHead(status).end('not this one');
    });
  });
  await new Promise((resolve) => {
    receiver.listen(0, '127.0.0.1', resolve);
  });
  server = await Server.start([
    '--destinations-allow-plain-http',
    'true',
    '--destinations-allow-networks',
    '127.0.0.1/32',
  ]);
  let context;
  ({ page, context } = await open(browser, {
    expected: [/status of 40[01]/],
    at: server.url,
  }));
  await context.grantPermissions(['clipboard-write']);
  await page.addInitScript(() => {
    globalThis.presses = 0;
    // Other pages of this browser have the same clipboard.
    const { clipboard } = navigator;
    const write = clipboard.writeText.bind(clipboard);
    clipboard.writeText = (text) => {
      globalThis.copied = text;
      return write(text);
    };
    addEventListener(
      'pointerdown',
      ({ isTrusted }) => {
        if (isTrusted) globalThis.presses += 1;
      },
      true,
    );
  });
  await signIn(page, '/console/', server.token, server.url);
  endpoint = (
    await api(page, 'POST', '/endpoints', {
      url: `http://${host}`,
      upstream_url: service.url,
    })
  ).body;
  for (const path of ['/checkout/502', '/search/502', '/checkout/200'])
    await visit(endpoint.public_url, path);
  await until(
    () =>
      api(
        page,
        'GET',
        `/events?type=http_request_complete.v0&object_id=${endpoint.id}`,
      ),
    ({ body }) => body.events.length === 3,
  );
});
after(async () => {
  agent?.kill();
  const widest = Math.max(0, ...rows.map(({ name }) => name.length));
  const line = (name, clicks, seconds) =>
    `${name.padEnd(widest)}  ${clicks.padStart(6)}  ${seconds.padStart(7)}`;
  console.log(
    [
      line('task', 'clicks', 'seconds'),
      ...rows.map(({ name, clicks, seconds }) =>
        line(name, String(clicks), seconds.toFixed(1)),
      ),
    ].join('\n'),
  );
  await browser.close();
  service?.server.close();
  receiver?.close();
  receiver?.closeAllConnections();
  await server?.remove();
});

const button = (name) => page.getByRole('button', { name, exact: true });
const link = (name) => page.getByRole('link', { name, exact: true });
const nav = (name) =>
  page
    .getByRole('navigation', { name: 'Main' })
    .getByRole('link', { name, exact: true });
const box = (name) => page.getByRole('textbox', { name, exact: true });
const pick = (name) => page.getByRole('combobox', { name, exact: true });
const option = (name) => page.getByRole('option', { name });
/** Copies what a button copies, and answers with it. */
async function copy(name) {
  await button(name).click();
  await page.getByText('Copied.').last().waitFor();
  return page.evaluate(() => globalThis.copied);
}

/** A task: what it takes, from Overview until its result is on screen. */
function task(name, act) {
  test(name, { skip: !program }, async () => {
    await go(page, '/');
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
    const before = await page.evaluate(() => globalThis.presses);
    let chosen = 0;
    /** Types into the palette and takes the first entry, which must be this one. */
    const palette = async (words, entry) => {
      chosen += 1;
      await page.keyboard.press('Control+k');
      await pick('Page, name, id or token').fill(words);
      await option(entry).and(page.locator('[aria-selected="true"]')).waitFor();
      await page.keyboard.press('Enter');
    };
    const started = performance.now();
    await act(palette);
    const seconds = (performance.now() - started) / 1000;
    const presses = await page.evaluate(() => globalThis.presses);
    const clicks = presses - before + chosen;
    rows.push({ name, clicks, seconds });
    assert.ok(clicks <= MOST, `${clicks} clicks`);
  });
}

/** To the page of the endpoint of these tests: two clicks. */
async function openEndpoint() {
  await nav('Endpoints').click();
  await page
    .getByRole('row', { name: new RegExp(host) })
    .getByRole('link')
    .first()
    .click();
}

describe('the twelve', () => {
  task('expose a local service', async () => {
    await page
      .getByRole('main')
      .getByRole('link', { name: 'Connect an agent' })
      .first()
      .click();
    await button('Create a credential').click();
    await page.getByText(/^CULVERT_AUTHTOKEN=\S{20,} culvert http/m).waitFor();
    const command = await copy('Copy the command');
    const [, token] = /^CULVERT_AUTHTOKEN=(\S{20,}) culvert http 3000/m.exec(
      command,
    );
    const own = Object.fromEntries(
      Object.entries(process.env).filter(
        ([name]) => !name.startsWith('CULVERT_'),
      ),
    );
    const { port } = new URL(`http://${server.listeners.agents}`);
    agent = spawn(
      program,
      [
        'http',
        new URL(service.url).port,
        '--url',
        `http://exposed${run}.culvert.localhost`,
        '--inspect-addr',
        '127.0.0.1:0',
      ],
      {
        env: {
          ...own,
          CULVERT_AUTHTOKEN: token,
          CULVERT_SERVER: `localhost:${port}`,
          CULVERT_CA_FILE: join(server.folder, 'data/ca.pem'),
        },
        stdio: 'ignore',
      },
    );
    await nav('Endpoints').click();
    await page
      .getByRole('row', { name: new RegExp(`exposed${run}`) })
      .waitFor();
  });

  task('create a cloud endpoint to an upstream', async () => {
    const url = `http://made${run}.culvert.localhost`;
    await nav('Endpoints').click();
    await link('Create an endpoint').click();
    await box('URL').fill(url);
    await box('Upstream URL').fill(service.url);
    await button('Create').click();
    await page.getByRole('heading', { name: url, level: 1 }).waitFor();
    const { body } = await api(page, 'GET', '/endpoints');
    const { public_url: at } = body.endpoints.find((one) => one.url === url);
    assert.equal(await visit(at, '/'), 200);
  });

  task('find all 502s of a host and path of 24 hours', async () => {
    await nav('Traffic').click();
    await pick('Search').fill(`502 host:${host} /checkout last 24h`);
    await page.keyboard.press('Enter');
    await option(/checkout\/502.*502/).waitFor();
    assert.equal(
      await option(/checkout\/200|search\/502/).count(),
      0,
      'others are not found',
    );
  });

  task('find who changed an endpoint, and what', async () => {
    await api(page, 'PATCH', `/endpoints/${endpoint.id}`, {
      description: 'the words of a mistake',
    });
    await openEndpoint();
    await link('History').click();
    await option(/Endpoint updated/)
      .first()
      .click();
    const event = page.getByRole('dialog', { name: 'Event' });
    await event
      .getByRole('row', { name: /description.*the words of a mistake/s })
      .waitFor();
    const { body: self } = await api(page, 'GET', '/self');
    await event
      .getByText(self.user?.email ?? /@/)
      .first()
      .waitFor();
  });

  task('restore an earlier version of it', async () => {
    await openEndpoint();
    await link('History').click();
    await option(/Endpoint created/).click();
    await button('Restore this version').click();
    const confirm = page.getByRole('dialog', {
      name: 'Restore this version?',
    });
    await confirm.getByText('Description').waitFor();
    await page.keyboard.press('Enter');
    await page.getByText('Restored.').waitFor();
    const { body } = await api(page, 'GET', `/endpoints/${endpoint.id}`);
    assert.equal(body.description, '');
  });

  task('make a key with an expiry for a bot', async (palette) => {
    const { body: bot } = await api(page, 'POST', '/bot_users', {
      name: `deployer ${run}`,
    });
    await palette('new key', 'Create an API key');
    await box('Description').fill(`deploys ${run}`);
    await button('90 days').click();
    await pick('Owner').fill(`deployer ${run}`);
    await option(`deployer ${run}`).click();
    await button('Create').click();
    const token = await copy('Copy token');
    const answer = await fetch(`${server.listeners.api}/self`, {
      headers: { authorization: `Bearer ${token}` },
    });
    const self = await answer.json();
    assert.equal(self.owner_id, bot.id);
  });

  task('invite a person who may only read', async (palette) => {
    await palette('invite', 'Create a user');
    await box('Email').fill(`twelve${run}@x.example`);
    await pick('Role').click();
    await option('read_only').click();
    await button('Create').click();
    await page.getByText(/\/console\/invitation#/).waitFor();
    const address = await copy('Copy invitation link');
    assert.match(address, /\/console\/invitation#/);
  });

  task('send audit events to a webhook, with a test', async (palette) => {
    await palette('new webhook', 'Create a destination');
    await button(/^Webhook/).click();
    const url = `http://127.0.0.1:${receiver.address().port}/audit`;
    await box('URL').fill(url);
    await box('Description').fill(`hook ${run}`);
    await pick('Events').fill('audit');
    await option('All audit events').click();
    await button('Create').click();
    await button('Send a test event').click();
    await page.getByText('The destination took the test event.').waitFor();
    assert.match(received.join(), /test/);
    received.length = 0;
    await api(page, 'POST', '/vaults', { name: `seen-${run}` });
    await until(
      async () => received.join(),
      (got) => got.includes('vault_created'),
    );
  });

  task('restrict an endpoint to an address range', async () => {
    await openEndpoint();
    await button('Restrict').click();
    await pick('Allow').fill('192.0.2.0/24');
    await button('Save restriction').click();
    await button('Change').waitFor();
    assert.equal(await visit(endpoint.public_url, '/checkout/200'), 403);
  });

  task('find why a domain has no certificate', async () => {
    await api(page, 'POST', '/reserved_domains', {
      domain: `twelve${run}.example.com`,
    });
    await nav('Domains and certificates').click();
    await link(`twelve${run}.example.com`).click();
    await button('Check').click();
    await page.getByText('Fails', { exact: true }).first().waitFor();
    await page.getByText(/this installation has no CA/).waitFor();
  });

  task('redrive the dead letters of a destination', async () => {
    const { body } = await api(page, 'GET', '/event_destinations');
    const { id } = body.event_destinations.find(
      ({ description }) => description === `hook ${run}`,
    );
    status = 422;
    await api(page, 'POST', '/vaults', { name: `refused-${run}` });
    await until(
      () => api(page, 'GET', `/event_destinations/${id}/dead_letters`),
      (found) => found.body.dead_letters.length > 0,
    );
    status = 204;
    received.length = 0;
    await nav('Events').click();
    await page
      .getByRole('main')
      .getByRole('link', { name: `hook ${run}` })
      .click();
    await button('Send all again').click();
    await page.getByText(/dead letters? sent to the queue again/).waitFor();
    await until(
      async () => received.join(),
      (got) => got.includes(`refused-${run}`),
    );
  });

  task('block requests by a policy, after a dry run', async (palette) => {
    const policy =
      'on_http_request:\n  - expressions: ["req.url.path.startsWith(\'/checkout\')"]\n    actions: [{type: deny}]\n';
    await palette(host, new RegExp(host));
    await link('Edit').click();
    await box('Traffic policy').fill(policy);
    await page.getByText('No problems found.').waitFor();
    await button('Try it against recent requests').click();
    const found = page.getByRole('list', { name: 'Results' });
    await found
      .getByText(/checkout/)
      .first()
      .waitFor();
    assert.match(await found.innerText(), /checkout[\s\S]*ends with deny/);
    await button('Review changes').click();
    await button('Save').click();
    await page.getByText('Saved.').waitFor();
    await page.getByRole('dialog').waitFor({ state: 'hidden' });
    assert.equal(await visit(endpoint.public_url, '/checkout/200'), 403);
    assert.equal(await visit(endpoint.public_url, '/search/200'), 200);
  });
});

describe('and these', () => {
  task('replay a webhook', async () => {
    await nav('Traffic').click();
    await page
      .getByRole('option', { name: /get.*search\/502/i })
      .first()
      .click();
    await page.getByRole('tab', { name: 'Send again' }).click();
    await button('Send again').click();
    await page.getByText('The response has the status 502.').waitFor();
  });

  task('revoke a leaked key', async () => {
    const { body } = await api(page, 'POST', '/api_keys', {
      description: `leaked ${run}`,
    });
    await nav('Access').click();
    await nav('API keys').click();
    await link(`leaked ${run}`).click();
    await button('Delete').click();
    await page
      .getByLabel(`Type leaked ${run} to confirm`)
      .fill(`leaked ${run}`);
    await page
      .getByRole('dialog')
      .getByRole('button', { name: 'Delete' })
      .click();
    await page.getByText(`Deleted leaked ${run}.`).waitFor();
    assert.equal((await api(page, 'GET', `/api_keys/${body.id}`)).status, 404);
  });

  task('rotate a key', async () => {
    await api(page, 'POST', '/api_keys', { description: `rotated ${run}` });
    await nav('Access').click();
    await nav('API keys').click();
    await link(`rotated ${run}`).click();
    await link('Rotate').click();
    await button('Rotate').click();
    await page.getByText('It is not shown again.').waitFor();
  });

  task('find the endpoint of a host', async () => {
    await nav('Endpoints').click();
    await page.getByText('Which endpoint serves a host?').click();
    await box('Host or URL').fill(`http://${host}`);
    await page.keyboard.press('Enter');
    await page.getByText('Its host is exactly this one.').waitFor();
  });

  task('see the busiest endpoint of the last hour', async () => {
    await page.getByRole('row', { name: new RegExp(host) }).waitFor();
  });

  task("see an agent's connections", async () => {
    await nav('Agents').click();
    await page
      .getByRole('main')
      .getByRole('row')
      .nth(1)
      .getByRole('link')
      .first()
      .click();
    await page
      .getByRole('row', { name: new RegExp(`exposed${run}`) })
      .waitFor();
  });

  task('stop an agent', async () => {
    await nav('Agents').click();
    await page
      .getByRole('main')
      .getByRole('row')
      .nth(1)
      .getByRole('link')
      .first()
      .click();
    await button('Stop').click();
    await page
      .getByRole('dialog')
      .getByRole('button', { name: 'Stop' })
      .click();
    if (agent.exitCode === null)
      await new Promise((resolve) => {
        agent.once('exit', resolve);
      });
    agent = undefined;
  });
});
