// Lists: words, order, columns, names of owners, and endpoints that are compared.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';
import { go, launch, open, settled, signIn, until } from './browser.mjs';
import { MARKUP } from './seed.mjs';
import { program, Server } from './server.mjs';
import { upstream, visit } from './upstream.mjs';

const axe = readFileSync(
  createRequire(import.meta.url).resolve('axe-core/axe.min.js'),
  'utf8',
);
/** More than one page, so that what is loaded is not all. */
const N_ENDPOINTS = 130;
let browser, server, service, page, faults, context;
const made = [];
before(async () => {
  if (!program) return;
  browser = await launch();
  service = await upstream();
  server = await Server.start();
  ({ page, faults, context } = await open(browser, {
    expected: [/status of 40[014]/],
    at: server.url,
  }));
  await signIn(page, '/console/', server.token, server.url);
  for (let n = 0; n < N_ENDPOINTS; n += 1)
    made.push(
      await server.make('endpoints', {
        url: `http://list-${String((n * 37) % N_ENDPOINTS).padStart(3, '0')}.culvert.localhost`,
        upstream_url: service.url,
        description: n === 0 ? `oldest ${MARKUP}` : '',
      }),
    );
});
after(async () => {
  await browser?.close();
  service?.server.close();
  await server?.remove();
});

const hostOf = ({ public_url: url }) => /list-(\d+)/.exec(url)[1];
const hosts = () =>
  page
    .locator('tbody tr td:first-child a')
    .evaluateAll((links) =>
      links.map((link) => /list-(\d+)/.exec(link.textContent)?.[1]),
    );
const address = () => new URL(page.url()).searchParams;

async function violations() {
  await page.evaluate(axe);
  return page.evaluate(async () => {
    const { violations: found } = await globalThis.axe.run(document, {
      resultTypes: ['violations'],
    });
    return found.map(({ id, nodes }) => `${id}: ${nodes[0].html}`);
  });
}

test(
  'words find the oldest of all endpoints, and stay in the address',
  { skip: !program },
  async () => {
    await go(page, '/endpoints');
    await page.getByRole('row').nth(1).waitFor();
    await page.getByLabel('Filter').fill('OLDEST list-000');
    await page.keyboard.press('Enter');
    await until(hosts, (found) => found.join() === '000');
    assert.equal(address().get('q'), 'OLDEST list-000');
    await page.getByText(MARKUP).waitFor();
    await page.reload();
    await until(hosts, (found) => found.join() === '000');
    await page.getByRole('button', { name: 'Clear' }).click();
    await until(hosts, (found) => found.length > 20);
    assert.equal(address().get('q'), null);
    // A condition is one as before.
    await page
      .getByLabel('Filter')
      .fill(`obj.url == "http://list-001.culvert.localhost"`);
    await page.keyboard.press('Enter');
    await until(hosts, (found) => found.join() === '001');
    assert.equal(address().get('q'), null);
    assert.match(address().get('filter'), /obj\.url/);
  },
);

test('a token goes nowhere', { skip: !program }, async () => {
  const asked = [];
  const note = (request) => asked.push(request.url());
  page.on('request', note);
  for (const path of ['/endpoints', '/traffic']) {
    await go(page, path);
    await settled(page);
    const box =
      path === '/traffic'
        ? page.getByRole('combobox', { name: 'Search' })
        : page.getByLabel('Filter');
    await box.fill(server.token);
    await page.getByText(/looks like a token/).waitFor();
    await page.keyboard.press('Enter');
    await settled(page);
    assert.equal(address().get('q'), null);
  }
  page.off('request', note);
  assert.ok(asked.length > 0);
  const secret = server.token.split('_').at(-1);
  assert.deepEqual(
    asked.filter((url) => url.includes(secret)),
    [],
  );
});

test(
  'a head sorts all endpoints on the server, and the choice of the order too',
  { skip: !program },
  async () => {
    await go(page, '/endpoints');
    const head = page.getByRole('columnheader', { name: 'Name' });
    await head.getByRole('button').click();
    await until(hosts, (found) => found[0] === '000' && found[1] === '001');
    assert.equal(await head.getAttribute('aria-sort'), 'ascending');
    assert.equal(address().get('order'), 'public_url');
    await head.getByRole('button').click();
    await until(hosts, (found) => found[0] === '129' && found[1] === '128');
    assert.equal(await page.getByLabel('Order').inputValue(), '-public_url');
    // Down to the last one, in order and each once.
    const seen = new Set();
    await until(
      async () => {
        for (const host of await hosts()) seen.add(host);
        await page.evaluate(() => scrollBy(0, innerHeight));
        return seen.size;
      },
      (count) => count === N_ENDPOINTS,
    );
    await page.getByLabel('Order').selectOption('Newest first');
    await until(
      () => address().get('order'),
      (order) => order === null,
    );
    // Words and an order together.
    await go(page, '/endpoints?q=list-01&order=public_url');
    await until(
      hosts,
      (found) =>
        found.join() === Array.from({ length: 10 }, (_, n) => `01${n}`).join(),
    );
    await go(page, '/endpoints?order=nothing');
    await page.getByText(/`order` must be one of/).waitFor();
  },
);

test(
  'what the server does not sort by is sorted over all objects',
  { skip: !program, timeout: 120_000 },
  async () => {
    // They are the oldest, so that they are on no first page.
    const [, , quiet, failing, busy] = made;
    for (let n = 0; n < 9; n += 1) await visit(busy.public_url, '/a');
    for (let n = 0; n < 4; n += 1) await visit(failing.public_url, '/b/500');
    await visit(quiet.public_url, '/a');
    await until(
      () => server.call('GET', '/statistics/top'),
      ({ body }) => body.top.length >= 3,
    );
    await go(page, '/endpoints');
    const head = (name) => page.getByRole('columnheader', { name });
    const press = (name) => head(name).getByRole('button').click();
    const first = (...wanted) =>
      until(
        hosts,
        (found) => found.slice(0, wanted.length).join() === wanted.join(),
      );
    await press('Requests a second');
    await first('018', '111', '074');
    assert.equal(address().get('order'), '-requests-a-second');
    assert.equal(
      await head('Requests a second').getAttribute('aria-sort'),
      'descending',
    );
    assert.equal(
      await page.getByRole('table').getAttribute('aria-rowcount'),
      String(N_ENDPOINTS + 1),
    );
    await page.reload();
    await first('018', '111', '074');
    // The others are equal, and stay as they were: the newest first.
    const newest = hostOf(made.at(-1));
    await press('Requests a second');
    await first(newest);
    assert.equal(address().get('order'), 'requests-a-second');
    await press('Requests a second');
    assert.equal(address().get('order'), null);
    await press('Errors');
    await first('111', '018', '074', newest);
    await press('Errors');
    await first('018', '074', '111', newest);
    await press('Online');
    await first('111', '018', '074', newest);
    await press('Served by');
    await until(hosts, (found) => found.length > 20);
    assert.equal(address().get('order'), 'served-by');
    await go(page, '/endpoints?q=list-01&order=-requests-a-second');
    await first('018');
    assert.equal((await hosts()).length, 10);
    for (const name of ['b of the order', 'a of the order']) {
      const { id: owner_id } = await server.make('bot_users', { name });
      await server.make('api_keys', { owner_id, description: `key ${name}` });
    }
    await go(page, '/api_keys');
    const keys = async () =>
      (await page.locator('tbody tr td:first-child a').allInnerTexts())
        .filter((text) => /of the order/.test(text))
        .map((text) => text.split(' ')[1])
        .join();
    await press('Owner');
    await until(keys, (found) => found === 'a,b');
    assert.equal(address().get('order'), 'owner_id');
    await press('Owner');
    await until(keys, (found) => found === 'b,a');
  },
);

test('columns are chosen, kept and passed on', { skip: !program }, async () => {
  await go(page, '/endpoints');
  const heads = () =>
    page.locator('th').evaluateAll((all) => all.map((one) => one.innerText));
  await page.getByRole('row').nth(1).waitFor();
  assert.deepEqual(await heads(), [
    'Name',
    'Online',
    'Served by',
    'Requests a second',
    'Errors',
    'Owner',
    'Created',
  ]);
  await page.getByRole('button', { name: 'Columns' }).click();
  await page.getByRole('checkbox', { name: 'Bindings' }).check();
  await page.getByRole('checkbox', { name: 'Served by' }).uncheck();
  await until(heads, (all) => all.includes('Bindings'));
  assert.ok(!(await heads()).includes('Served by'));
  const link = page.url();
  assert.match(address().get('columns'), /bindings/);
  // This browser keeps them; another has them by the link.
  await go(page, '/endpoints');
  await until(heads, (all) => all.includes('Bindings'));
  const other = await open(browser, {
    expected: [/status of 40[014]/],
    at: server.url,
  });
  const { pathname, search } = new URL(link);
  await signIn(other.page, pathname + search, server.token, server.url);
  await other.page.getByRole('columnheader', { name: 'Bindings' }).waitFor();
  await other.page.goto(`${server.url}/console/endpoints`);
  await other.page.getByRole('columnheader', { name: 'Served by' }).waitFor();
  assert.deepEqual(other.faults, []);
  await other.context.close();
  await page.getByRole('button', { name: 'Columns' }).click();
  await page.getByRole('button', { name: 'Usual columns' }).click();
  await until(heads, (all) => all.includes('Served by'));
  // What another version or a person wrote there is no column.
  await go(page, '/endpoints?columns=nothing,%3Cb%3E');
  await page.getByRole('columnheader', { name: 'Served by' }).waitFor();
});

test(
  'owners and destinations have their names, and those that one may not see their IDs',
  { skip: !program },
  async () => {
    const bot = await server.make('bot_users', { name: `<i>bot</i> of lists` });
    const key = await server.make('api_keys', {
      owner_id: bot.id,
      description: 'key of the bot',
    });
    const asked = [];
    const note = (request) =>
      /bot_users\/bot_/.test(request.url()) && asked.push(request.url());
    page.on('request', note);
    await go(page, '/api_keys');
    const owner = page
      .getByRole('row', { name: /key of the bot/ })
      .getByRole('link', { name: '<i>bot</i> of lists' });
    await owner.waitFor();
    assert.match(await owner.getAttribute('href'), new RegExp(bot.id));
    page.off('request', note);
    assert.equal(asked.length, new Set(asked).size);
    // The key of the bot may read keys alone.
    const { status } = await server.call(
      'PATCH',
      `/api_keys/${key.id}/restrictions`,
      { scopes: ['keys.read'] },
    );
    assert.equal(status, 200);
    const other = await open(browser, {
      expected: [/status of 40[0134]/],
      at: server.url,
    });
    await signIn(other.page, '/console/api_keys', key.token, server.url);
    await other.page.getByRole('row', { name: /key of the bot/ }).waitFor();
    await other.page.getByText(bot.id).first().waitFor();
    assert.deepEqual(other.faults, []);
    await other.context.close();
  },
);

test(
  'an ID is read as it is, also on a card, and a page does not repeat what it is of',
  { skip: !program },
  async () => {
    const [{ id }] = made;
    await go(page, '/endpoints?q=list-000&columns=id');
    await page.getByRole('cell', { name: id, exact: true }).waitFor();
    await page.setViewportSize({ width: 360, height: 760 });
    const { width } = await page.locator(`code[title="${id}"]`).boundingBox();
    assert.ok(width > 100, `${width} pixels`);
    await page.setViewportSize({ width: 1440, height: 900 });
    const vault = await server.make('vaults', { name: 'vault-of-lists' });
    await server.make('vault_secrets', {
      name: 'secret-of-lists',
      value: 'x',
      vault_id: vault.id,
    });
    await server.make('grants', {
      object_id: vault.id,
      grantee: 'role:member',
    });
    await go(page, `/vaults/${vault.id}`);
    const heads = (name) =>
      page
        .getByRole('region', { name, exact: true })
        .getByRole('columnheader')
        .allInnerTexts();
    await page.getByRole('cell', { name: 'All members' }).waitFor();
    assert.deepEqual(await heads('Secrets'), ['Name', 'Created by', 'Created']);
    assert.deepEqual(await heads('Grants'), ['Name', 'Grantee', 'Created']);
    await page
      .getByRole('region', { name: 'Grants', exact: true })
      .getByRole('link')
      .first()
      .click();
    await page
      .locator('dt:text-is("Object") + dd')
      .getByText('vault-of-lists')
      .waitFor();
  },
);

test(
  'endpoints are compared: chosen in the list, by a link, and at 360 px',
  { skip: !program, timeout: 120_000 },
  async () => {
    const [one, other] = made;
    for (let n = 0; n < 6; n += 1) {
      await visit(one.public_url, '/a');
      await visit(other.public_url, n % 2 ? '/b/500' : '/b');
    }
    await until(
      () => server.call('GET', '/statistics/top'),
      ({ body }) => body.top.length >= 2,
    );
    await go(page, '/endpoints?q=list-0&order=created_at');
    await page.getByRole('button', { name: 'Compare', exact: true }).click();
    const start = page.getByRole('button', { name: 'Compare them' });
    assert.equal(await start.isDisabled(), true);
    for (const { public_url: url } of made.slice(0, 2)) {
      const box = page.getByRole('checkbox', { name: `Choose ${url}` });
      // Only rows near the screen are in the page, which may still return to where it was.
      await until(
        () => page.evaluate(() => scrollTo(0, 0)).then(() => box.count()),
        (count) => count === 1,
      );
      await box.check();
    }
    await page.getByRole('link', { name: 'Compare them' }).click();
    await page
      .getByRole('heading', { name: 'Compare endpoints', level: 1 })
      .waitFor();
    assert.equal(address().get('endpoints'), `${one.id},${other.id}`);
    for (const title of [
      'Latency p50',
      'Latency p95',
      'Latency p99',
      'Error rate',
      'Requests a second',
    ])
      await page
        .getByRole('img', {
          name: new RegExp(`^${title}: .*list-000.*list-037`),
        })
        .waitFor();
    for (const color of ['c1', 'c2'])
      assert.match(
        await page
          .locator(`path[data-color="${color}"]`)
          .first()
          .evaluate((path) => getComputedStyle(path).stroke),
        /^rgb/,
      );
    const row = (host) => page.getByRole('row', { name: new RegExp(host) });
    await row('list-000').getByText('0 %').waitFor();
    await row('list-037').getByText('50 %').waitFor();
    for (const scheme of ['light', 'dark']) {
      await page.emulateMedia({ colorScheme: scheme });
      assert.deepEqual(await violations(), [], scheme);
    }
    await page.setViewportSize({ width: 360, height: 760 });
    assert.equal(
      await page.evaluate(
        () => document.documentElement.scrollWidth <= innerWidth,
      ),
      true,
    );
    assert.deepEqual(await violations(), []);
    await page.getByRole('button', { name: 'Day' }).click();
    assert.equal(address().get('range'), '1d');
    await page.getByRole('button', { name: /Leave out .*list-037/ }).click();
    await page.getByText('Choose 2 to 8 endpoints').waitFor();
    // IDs of a link that are none, or of nothing.
    await go(page, '/compare?endpoints=%3Cb%3E,ep_nothing,ep_else,ep_else');
    await page
      .getByRole('img', { name: /^Latency p50: ep_nothing –, ep_else –/ })
      .waitFor();
    await go(page, '/endpoints?q=list-00');
    await page.getByRole('button', { name: 'Columns' }).click();
    await page.getByRole('button', { name: 'Compare', exact: true }).click();
    await page
      .getByRole('checkbox', { name: /^Choose http/ })
      .first()
      .waitFor();
    assert.deepEqual(await violations(), []);
    assert.equal(
      await page.evaluate(
        () => document.documentElement.scrollWidth <= innerWidth,
      ),
      true,
    );
    assert.deepEqual(faults, []);
    await context.close();
  },
);
