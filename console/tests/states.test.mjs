// What the pages show when something is wrong, each provoked at real servers: a lost store, a lost node, a lost server,
// a session that ended, a sick destination, bad input.
import assert from 'node:assert/strict';
import { cpSync, mkdirSync, readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { createServer } from 'node:http';
import { after, before, describe, test } from 'node:test';
import { api, launch, open, settled, signIn, until } from './browser.mjs';
import { culvert, Database, postgres, program, Server } from './server.mjs';

const NETWORK = {
  expected: [
    /status of (40[0-9]|503)/,
    /ERR_CONNECTION_REFUSED/,
    /ERR_INCOMPLETE_CHUNKED_ENCODING/,
    /ERR_EMPTY_RESPONSE/,
    /ERR_CONNECTION_RESET/,
  ],
};

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());

const at = (server) => ({ ...NETWORK, at: server.url });

// Each has servers of its own, and waits for most of its time.
describe('wrong states', { concurrency: true }, () => {
  test(
    'an upstream that fails its checks is shown with the reason',
    { skip: !program },
    async (t) => {
      const server = await Server.start([
        '--edge-allow-private-upstreams',
        'true',
      ]);
      const service = createServer((_, response) => response.end('ok'));
      await new Promise((listens) => service.listen(0, '127.0.0.1', listens));
      t.after(async () => {
        service.closeAllConnections();
        service.close();
        await server.remove();
      });
      const { page, faults } = await open(browser, at(server));
      await signIn(page, '/console/', server.token, server.url);
      const good = `http://127.0.0.1:${service.address().port}`;
      // Nothing listens on the port for discarded bytes.
      const bad = 'http://127.0.0.1:9';
      const made = await api(page, 'POST', '/endpoints', {
        url: 'http://several.culvert.localhost',
        upstreams: [{ url: good }, { url: bad }],
        upstream_health: { active: { interval: '1s', unhealthy_threshold: 1 } },
      });
      await page.goto(`${server.url}/console/endpoints/${made.body.id}`);
      const item = (url) =>
        page
          .getByRole('list', { name: 'Upstreams' })
          .getByRole('listitem')
          .filter({ hasText: url });
      await item(bad).getByText('Unhealthy', { exact: true }).waitFor();
      await item(bad)
        .getByText(/health check: connecting: .*refused/)
        .waitFor();
      await item(good).getByText('Healthy', { exact: true }).waitFor();
      await item(good)
        .getByText(/checked in/)
        .waitFor();
      assert.deepEqual(faults, []);
    },
  );

  test(
    'a lost node is shown, and the pages go on without a reload',
    { skip: !program || !postgres },
    async (t) => {
      const database = await Database.create();
      const node = (name) => [
        '--node-name',
        name,
        '--database-url',
        database.url,
        '--secrets-key-file',
        database.key,
      ];
      const one = await Server.start(node('one'));
      const two = new Server(`${one.folder}/two`, node('two'));
      t.after(async () => {
        await one.remove();
        await two.remove();
        await database.drop();
      });
      two.token = one.token;
      mkdirSync(two.folder);
      await two.start();
      const { page, context, faults } = await open(browser, at(one));
      await signIn(page, '/console/nodes', one.token, one.url);
      const section = (name) =>
        page.locator('section').filter({
          has: page.getByRole('heading', { name, exact: true, level: 2 }),
        });
      await section('one').getByText('Online', { exact: true }).waitFor();
      await section('two').getByText('Online', { exact: true }).waitFor();
      const overview = await context.newPage();
      await overview.goto(`${one.url}/console/`);
      await overview.getByText('requests a second', { exact: true }).waitFor();
      await two.kill();
      // A node is offline 20 seconds after its last report. Nothing else happens in these seconds, so they are taken from the report.
      await database.run(
        "update culvert_events.node_note set noted_at = noted_at - 20000000000 where node = 'two'",
      );
      await section('two').getByText('Offline', { exact: true }).waitFor();
      await section('one').getByText('Online', { exact: true }).waitFor();
      for (const tab of [page, overview])
        await tab
          .getByRole('alert')
          .getByText('1 of 2 nodes is offline: two.')
          .waitFor();
      await two.start();
      await section('two').getByText('Online', { exact: true }).waitFor();
      for (const tab of [page, overview])
        await tab
          .getByText('1 of 2 nodes is offline: two.')
          .waitFor({ state: 'detached' });
      assert.deepEqual(faults, []);
      await context.close();
    },
  );

  test(
    'a restored database is said on the first page, to admins, until it is acknowledged',
    { skip: !program },
    async (t) => {
      const server = await Server.start();
      t.after(() => server.remove());
      const bot = await server.make('bot_users', { name: 'a-bot' });
      const { token } = await server.make('api_keys', { owner_id: bot.id });
      await server.stop();
      // The last head is signed at the stop. The copy does not have what comes after it.
      const data = join(server.folder, 'data');
      const copy = join(server.folder, 'copy');
      const ofStore = (folder) =>
        readdirSync(folder).filter((name) => name.startsWith('state.db'));
      mkdirSync(copy);
      for (const name of ofStore(data))
        cpSync(join(data, name), join(copy, name));
      await server.start();
      await server.make('vaults', { name: 'lost' });
      await server.stop();
      for (const name of ofStore(data)) rmSync(join(data, name));
      for (const name of ofStore(copy))
        cpSync(join(copy, name), join(data, name));
      await server.start();

      const { page, context, faults } = await open(browser, at(server));
      await signIn(page, '/console/', server.token, server.url);
      const notice = page
        .getByRole('alert')
        .getByText('culvert admin acknowledge-restore');
      await notice.waitFor();
      const other = await open(browser, at(server));
      await signIn(other.page, '/console/', token, server.url);
      await other.page
        .getByText('requests a second', { exact: true })
        .waitFor();
      assert.equal(
        await other.page.getByText('acknowledge-restore').count(),
        0,
      );

      await culvert('admin', 'acknowledge-restore', '--data-dir', data);
      await notice.waitFor({ state: 'detached' });
      assert.deepEqual([...faults, ...other.faults], []);
      await context.close();
      await other.context.close();
    },
  );

  test(
    'a lost store is shown, and the page goes on without a reload',
    { skip: !program || !postgres },
    async (t) => {
      const database = await Database.create();
      const server = await Server.start([
        '--database-url',
        database.url,
        '--secrets-key-file',
        database.key,
      ]);
      t.after(async () => {
        await server.remove();
        await database.drop();
      });
      await server.make('vaults', { name: 'before' });
      const { page, context, faults } = await open(browser, at(server));
      await signIn(page, '/console/vaults', server.token, server.url);
      await page.getByRole('link', { name: 'before' }).waitFor();
      // The page says so, with the request's ID, and keeps what it shows.
      database.cut();
      await page
        .getByRole('heading', { name: 'The server could not do this' })
        .waitFor();
      await page
        .getByText(/Request op_/)
        .or(page.locator('code', { hasText: /^op_/ }))
        .first()
        .waitFor();
      await page
        .getByText('The page tries again every five seconds.')
        .waitFor();
      await page.getByRole('link', { name: 'before' }).waitFor();
      await database.connect();
      await until(
        () => server.call('POST', '/vaults', { name: 'after' }),
        ({ status }) => status === 201,
      );
      await page
        .getByRole('heading', { name: 'The server could not do this' })
        .waitFor({ state: 'detached' });
      await page.getByRole('link', { name: 'after' }).waitFor();
      assert.deepEqual(faults, []);
      await context.close();
    },
  );

  test(
    'a session that ends with its key asks for another one over the page',
    { skip: !program },
    async (t) => {
      const server = await Server.start();
      t.after(() => server.remove());
      const key = await server.make('api_keys', { description: 'leaked' });
      const { page, context, faults } = await open(browser, at(server));
      await signIn(page, '/console/vaults/new', key.token, server.url);
      const panel = page.getByRole('dialog', { name: 'Create a vault' });
      await panel
        .getByRole('textbox', { name: 'Name', exact: true })
        .fill('kept');
      await server.call('DELETE', `/api_keys/${key.id}`);
      const again = page.getByRole('dialog', { name: 'Sign in again' });
      await again.getByText('Your session ended.').waitFor();
      await again.getByLabel('Token of an API key').fill(key.token);
      await page.keyboard.press('Enter');
      await again.getByText('The server does not know this token.').waitFor();
      await again.getByLabel('Token of an API key').fill(server.token);
      await page.keyboard.press('Enter');
      await again.waitFor({ state: 'detached' });
      assert.equal(
        await panel
          .getByRole('textbox', { name: 'Name', exact: true })
          .inputValue(),
        'kept',
      );
      await panel.getByRole('button', { name: 'Create' }).click();
      await page.getByRole('heading', { name: 'kept', level: 1 }).waitFor();
      assert.deepEqual(faults, []);
      await context.close();
    },
  );

  test(
    'a sick destination says what its receiver answers, and its dead letters are delivered after it is well',
    { skip: !program },
    async (t) => {
      const server = await Server.start([
        '--destinations-allow-plain-http',
        'true',
        '--destinations-allow-networks',
        '127.0.0.1/32',
      ]);
      let status = 422;
      const taken = [];
      const receiver = createServer((request, response) => {
        let body = '';
        request
          .on('data', (part) => {
            body += part;
          })
          .on('end', () => {
            if (status < 300) taken.push(JSON.parse(body));
            response.writeHead(status).end('the receiver is sick');
          });
      });
      await new Promise((resolve) => {
        receiver.listen(0, '127.0.0.1', resolve);
      });
      t.after(async () => {
        receiver.close();
        receiver.closeAllConnections();
        await server.remove();
      });
      const destination = await server.make('event_destinations', {
        format: 'json',
        description: 'sick',
        target: {
          webhook: { url: `http://127.0.0.1:${receiver.address().port}/` },
        },
      });
      await server.make('event_subscriptions', {
        destination_ids: [destination.id],
        sources: [{ type: 'vault_created.v0' }],
      });
      await server.make('vaults', { name: 'told' });
      const { page, context, faults } = await open(browser, at(server));
      await signIn(
        page,
        `/console/event_destinations/${destination.id}`,
        server.token,
        server.url,
      );
      await settled(page);
      await page.getByRole('button', { name: 'Send a test event' }).click();
      await until(
        () => page.getByRole('alert').allTextContents(),
        (texts) => texts.some((text) => text.includes('422')),
      );
      await page
        .getByRole('heading', {
          name: 'The destination did not take the test event',
        })
        .waitFor();
      await page.getByText(/\(422\)/).waitFor();
      await page.getByRole('checkbox', { name: /^Pick dead letter/ }).waitFor();
      // The newest, so that it is first until the health sorts.
      await server.make('event_destinations', {
        format: 'json',
        description: 'quiet',
        target: { file: { path: 'quiet.ndjson' } },
      });
      await page.goto(`${server.url}/console/event_destinations`);
      await page.getByText(/Unhealthy|Retrying/).waitFor();
      const names = async () =>
        (await page.locator('tbody tr td:first-child').allInnerTexts())
          .map((text) => /sick|quiet/.exec(text)?.[0])
          .join();
      await until(names, (found) => found === 'quiet,sick');
      const head = page.getByRole('columnheader', { name: 'Health' });
      await head.getByRole('button').click();
      await until(names, (found) => found === 'sick,quiet');
      assert.equal(await head.getAttribute('aria-sort'), 'ascending');
      await head.getByRole('button').click();
      await until(names, (found) => found === 'quiet,sick');
      assert.equal(await head.getAttribute('aria-sort'), 'descending');
      await page.goto(`${server.url}/console/`);
      await page
        .getByText(/Unhealthy|Retrying/)
        .first()
        .waitFor();
      status = 200;
      await page.goto(
        `${server.url}/console/event_destinations/${destination.id}`,
      );
      await page.getByRole('button', { name: 'Send all again' }).click();
      await page.getByText('1 dead letter sent to the queue again.').waitFor();
      await page.getByText('Healthy', { exact: true }).waitFor();
      assert.deepEqual(
        taken
          .filter(({ event_type: type }) => type === 'vault_created.v0')
          .map(({ object }) => object.name),
        ['told'],
      );
      assert.deepEqual(faults, []);
      await context.close();
    },
  );

  test(
    'bad input is refused at its place, and nothing is lost',
    { skip: !program },
    async (t) => {
      const server = await Server.start();
      t.after(() => server.remove());
      const { page, context, faults } = await open(browser, at(server));
      await signIn(page, '/console/endpoints/new', server.token, server.url);
      const panel = page.getByRole('dialog', { name: 'Create an endpoint' });
      const url = panel.getByRole('textbox', { name: 'URL', exact: true });
      await url.fill('ftp://<img src=x>');
      await panel
        .getByRole('textbox', { name: 'Traffic policy' })
        .fill('on_http_request:\n  - actions:\n      - type: no-such-action\n');
      await panel.getByRole('button', { name: 'Create', exact: true }).click();
      await panel.getByRole('alert').first().waitFor();
      assert.equal(await url.getAttribute('aria-invalid'), 'true');
      assert.equal(await url.inputValue(), 'ftp://<img src=x>');
      await url.fill('http://fine.culvert.localhost');
      await panel.getByRole('button', { name: 'Create', exact: true }).click();
      await panel
        .getByText(/no-such-action/)
        .last()
        .waitFor();
      await panel.getByText(/ERR_NGROK_\d+/).waitFor();

      await page.goto(
        `${server.url}/console/traffic?view=kept&filter=ev.http.nope%20%3D%3D%201`,
      );
      await page
        .getByRole('heading', { name: 'The server refused this' })
        .waitFor();
      await page.getByRole('alert').getByText(/nope/).waitFor();
      await page.goto(`${server.url}/console/traffic?filter=ev.nope`);
      await page.getByText('Refused', { exact: true }).waitFor();
      await page
        .getByRole('heading', { name: 'The server refused this' })
        .waitFor();
      await page.goto(`${server.url}/console/endpoints?filter=obj.`);
      await page
        .getByLabel('Filter')
        .and(page.locator('[aria-invalid="true"]'))
        .waitFor();
      for (const path of [
        '/endpoints/ep_nothing',
        '/endpoints/%00',
        '/nothing',
        '/vaults/vault_2h0bXHdzY5W9r3oLUMHCLCbPRUc',
      ]) {
        await page.goto(`${server.url}/console${path}`);
        await page
          .getByText(
            /It is not there|There is no such page|The server refused this/,
          )
          .first()
          .waitFor();
      }
      assert.deepEqual(faults, []);
      await context.close();
    },
  );
});
