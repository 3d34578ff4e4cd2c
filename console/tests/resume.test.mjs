// Live pages go on after an interruption where they ended: nothing is missing, nothing is there twice.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { launch, open, signIn } from './browser.mjs';
import { program, Server } from './server.mjs';
import { upstream, visit } from './upstream.mjs';

let browser, service, server;
before(async () => {
  browser = await launch();
  service = await upstream();
  if (program) server = await Server.start();
});
after(async () => {
  await browser.close();
  service.server.close();
  await server?.remove();
});

const NETWORK = { expected: [/status of 40[0-9]/, /ERR_/] };

/** The names in a live list, in its order. */
const shown = (page, pattern) =>
  page
    .getByRole('option')
    .allInnerTexts()
    .then((rows) => rows.flatMap((row) => pattern.exec(row)?.[0] ?? []));

test(
  'the audit page goes on after its server was killed',
  { skip: !program },
  async () => {
    const { page, context } = await open(browser, {
      ...NETWORK,
      at: server.url,
    });
    await signIn(page, '/console/audit', server.token, server.url);
    await page.getByText('Live', { exact: true }).waitFor();
    // The stream has had no message yet: even then nothing is missed.
    await server.kill();
    await page.getByText(/^Cut off since/).waitFor();
    await page.getByText('The server does not answer.').first().waitFor();
    await server.start();
    await server.make('vaults', { name: 'gap-1' });
    await server.make('vaults', { name: 'gap-2' });
    await page.getByText(/then resumed without a gap/).waitFor();
    await page.getByRole('option', { name: /gap-2/ }).waitFor();
    await server.make('vaults', { name: 'gap-3' });
    await page.getByRole('option', { name: /gap-3/ }).waitFor();
    assert.deepEqual(await shown(page, /gap-\d/), ['gap-3', 'gap-2', 'gap-1']);

    // Now with messages before it.
    await server.kill();
    await page.getByText(/^Cut off since/).waitFor();
    await server.start();
    await server.make('vaults', { name: 'gap-4' });
    await page.getByText(/then resumed without a gap/).waitFor();
    await page.getByRole('option', { name: /gap-4/ }).waitFor();
    await server.make('vaults', { name: 'gap-5' });
    await page.getByRole('option', { name: /gap-5/ }).waitFor();
    assert.deepEqual(await shown(page, /gap-\d/), [
      'gap-5',
      'gap-4',
      'gap-3',
      'gap-2',
      'gap-1',
    ]);
    await context.close();
  },
);

test(
  'the traffic page goes on after the network was away',
  { skip: !program },
  async () => {
    const { public_url: url } = await server.make('endpoints', {
      url: 'http://live.culvert.localhost',
      upstream_url: service.url,
    });
    const { page, context } = await open(browser, {
      ...NETWORK,
      at: server.url,
    });
    // Requests alone: how many connections end meanwhile depends on how long it takes.
    await signIn(
      page,
      '/console/traffic?type=http_request_complete.v0',
      server.token,
      server.url,
    );
    await page.getByText('Live', { exact: true }).waitFor();
    await visit(url, '/one');
    await page.getByRole('option', { name: /\/one/ }).waitFor();
    await context.setOffline(true);
    await page.getByText(/^Cut off since/).waitFor();
    for (let n = 0; n < 20; n += 1) await visit(url, `/gap-${n}`);
    await context.setOffline(false);
    await page
      .getByText(/then resumed without a gap. 20 events recovered/)
      .waitFor();
    await visit(url, '/last');
    await page.getByRole('option', { name: /\/last/ }).waitFor();
    const rows = await shown(page, /\/(one|last|gap-\d+)\b/);
    assert.equal(rows.length, 22);
    assert.equal(new Set(rows).size, 22);
    await context.close();
  },
);

test(
  'a server that keeps no traffic says that a gap is left',
  { skip: !program },
  async (t) => {
    const other = await Server.start(['--events-traffic-retention', '0s']);
    t.after(() => other.remove());
    const { page, context } = await open(browser, {
      ...NETWORK,
      at: other.url,
    });
    await signIn(page, '/console/traffic', other.token, other.url);
    await page.getByText('Live', { exact: true }).waitFor();
    await context.setOffline(true);
    await page.getByText(/^Cut off since/).waitFor();
    await context.setOffline(false);
    await page.getByText(/Events of that time are missing/).waitFor();
    await page.getByText(/This server keeps no traffic/).waitFor();
    await context.close();
  },
);
