// Searches of traffic and audit in plain words: chips, completion, narrowing, CEL, and to the end.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { api, go, launch, open, signIn, until } from './browser.mjs';
import { upstream, visit } from './upstream.mjs';

let browser, page, faults, service, endpoint;
const run = Date.now() % 1_000_000;
const host = `words${run}.culvert.localhost`;

before(async () => {
  browser = await launch();
  service = await upstream();
  ({ page, faults } = await open(browser, { expected: [/status of 40[01]/] }));
  await signIn(page);
  const made = await api(page, 'POST', '/endpoints', {
    url: `http://${host}`,
    upstream_url: service.url,
  });
  endpoint = made.body;
  for (const path of ['/checkout/1', '/checkout/500', '/other/404'])
    await visit(endpoint.public_url, path);
  await until(
    () =>
      api(
        page,
        'GET',
        `/events?type=http_request_complete.v0&object_id=${endpoint.id}`,
      ),
    ({ body }) => body.events.length >= 3,
  );
});
after(async () => {
  await browser.close();
  service.server.close();
});

const box = () => page.getByRole('combobox', { name: 'Search' });
const chip = (label) =>
  page.getByRole('list', { name: 'The search' }).getByText(label);
const row = (pattern) => page.getByRole('option', { name: pattern });
const words = () => new URL(page.url()).searchParams.get('q');

test('words become chips, Enter searches, and the address holds the search', async () => {
  await go(page, '/traffic');
  await box().fill(`500 host:${host} /checkout`);
  await chip('status 500').waitFor();
  await chip(`host ${host}`).waitFor();
  await page.keyboard.press('Enter');
  await row(/checkout\/500/).waitFor();
  assert.equal(await row(/checkout\/1|other/).count(), 0);
  assert.equal(words(), `500 host:${host} /checkout`);
  // Events that do not match do not appear; those that do, appear.
  await visit(endpoint.public_url, '/checkout/2');
  await visit(endpoint.public_url, '/checkout/new/500');
  await row(/checkout\/new\/500/).waitFor();
  assert.equal(await row(/checkout\/2/).count(), 0);
  // A chip is removed, and the search of before is one step back.
  await page.getByRole('button', { name: 'Remove status 500' }).click();
  await row(/checkout\/1/).waitFor();
  assert.equal(words(), `host:${host} /checkout`);
  await page.goBack();
  await row(/checkout\/1/).waitFor({ state: 'detached' });
  await row(/checkout\/500/).waitFor();
  assert.equal(await box().inputValue(), `500 host:${host} /checkout`);
  // The link leads another page there.
  const other = await open(browser, { expected: [/status of 401/] });
  const { pathname, search } = new URL(page.url());
  await signIn(other.page, pathname + search);
  await other.page.getByRole('option', { name: /checkout\/500/ }).waitFor();
  await other.context.close();
});

test('the last word is completed by keyboard alone', async () => {
  await go(page, '/traffic');
  await box().focus();
  await page.keyboard.type('reas');
  const list = page.getByRole('listbox', { name: 'Completions' });
  await list.getByRole('option', { name: 'reason:' }).waitFor();
  await page.keyboard.press('ArrowDown');
  assert.equal(
    await list.getByRole('option', { selected: true }).getAttribute('id'),
    await box().getAttribute('aria-activedescendant'),
  );
  await page.keyboard.press('Enter');
  assert.equal(await box().inputValue(), 'reason:');
  await page.keyboard.type('upstream_con');
  const whole = list.getByRole('option', {
    name: 'reason:upstream_connect_failed',
  });
  await whole.waitFor();
  while ((await whole.getAttribute('aria-selected')) !== 'true')
    await page.keyboard.press('ArrowDown');
  await page.keyboard.press('Tab');
  assert.equal(await box().inputValue(), 'reason:upstream_connect_failed ');
  await list.waitFor({ state: 'hidden' });
  assert.equal(words(), null);
});

test('hosts and endpoints complete a word', async () => {
  await go(page, '/traffic');
  const list = page.getByRole('listbox', { name: 'Completions' });
  await box().fill(`5xx ${host.slice(0, 8).toUpperCase()}`);
  await list.getByRole('option', { name: `${host} host` }).waitFor();
  await list.getByRole('option', { name: `object:${endpoint.id}` }).click();
  assert.equal(await box().inputValue(), `5xx object:${endpoint.id} `);
  await chip(`object ${endpoint.id}`).waitFor();
});

test('a word without a meaning is marked, and its neighbours are not', async () => {
  await go(page, '/traffic');
  await box().fill('500 statsu:200 /checkout');
  await page.keyboard.press('Enter');
  const mark = page.locator('mark');
  await mark.waitFor();
  assert.equal(await mark.innerText(), 'statsu:200');
  await page
    .getByRole('alert')
    .getByText(/did you mean `status:`/)
    .waitFor();
  assert.equal(await page.getByRole('option').count(), 0);
});

test('a click on a value narrows the search', async () => {
  await go(page, '/traffic');
  await page
    .getByRole('option', { name: new RegExp(`${host}.*/other/404`) })
    .getByText(host)
    .click();
  await page.getByRole('button', { name: `Remove host ${host}` }).waitFor();
  await row(/checkout\/500/)
    .getByText('500', { exact: true })
    .click();
  await row(/other/).waitFor({ state: 'detached' });
  assert.equal(words(), `host:${host} 500`);
  // Another value of the same kind takes the place of the first.
  await go(page, `/traffic?q=${encodeURIComponent(`host:${host} 5xx`)}`);
  await row(/checkout\/500/).click({ position: { x: 20, y: 10 } });
  const detail = page.getByRole('dialog', { name: 'Event' });
  await detail.getByRole('button', { name: '500', exact: true }).click();
  await until(words, (q) => q === `host:${host} 500`);
  for (const [name, word] of [
    ['/checkout/500', '/checkout/500'],
    ['127.0.0.1', '127.0.0.1'],
    [endpoint.id, endpoint.id],
  ]) {
    await row(/checkout\/500/).click({ position: { x: 20, y: 10 } });
    await detail.getByRole('button', { name, exact: true }).click();
    await until(words, (q) => q.split(' ').includes(word));
  }
  await row(/checkout\/500/).waitFor();
  assert.deepEqual(faults, []);
});

test('the condition is shown as CEL and edited', async () => {
  await go(page, `/traffic?q=${encodeURIComponent(`500 host:${host}`)}`);
  await row(/checkout\/500/).waitFor();
  await page.getByRole('button', { name: 'As CEL' }).click();
  const editor = page.getByRole('textbox', {
    name: 'Filter, a condition in CEL on ev',
  });
  await editor.waitFor();
  assert.match(await editor.innerText(), /status_code == 500/);
  await editor.fill(
    `ev.conn.server_name == "${host}" && ev.http.response.status_code == 404`,
  );
  await page.getByRole('button', { name: 'Search' }).click();
  await row(/other\/404/).waitFor();
  assert.equal(await row(/checkout/).count(), 0);
  assert.equal(words(), null);
  await page.getByRole('button', { name: 'In words' }).click();
  await page.getByRole('button', { name: /^Remove CEL / }).click();
  await row(/checkout\/500/).waitFor();
});

test('a search continues by itself to the end, and can be stopped', async () => {
  // The server is asked for pages that found nothing, as a search through many events does.
  let asked = 0;
  await page.route(/events\?limit=100/, (route) => {
    const url = new URL(route.request().url());
    if (!/nothing_is_like_it/.test(url.searchParams.get('filter')))
      return route.fallback();
    asked += 1;
    const n = Number(url.searchParams.get('cursor') ?? 0);
    const next = new URL(url);
    next.searchParams.set('cursor', String(n + 1));
    return route.fulfill({
      json: {
        events: [],
        next_page_uri: n < 60 ? next.href : null,
        searched: {
          to: new Date(Date.now() - n * 60_000).toISOString(),
          share: n / 60,
        },
        withheld_types: [],
      },
    });
  });
  await go(page, '/traffic?q=nothing_is_like_it');
  await page.getByText(/Searched back to .*, \d+ %/).waitFor();
  await page.getByRole('button', { name: 'Stop', exact: true }).click();
  await page.getByText(/^Stopped\. Searched back to/).waitFor();
  const stopped = asked;
  await page.getByRole('button', { name: 'Continue' }).click();
  await page.getByRole('heading', { name: 'No event matches' }).waitFor();
  assert.ok(asked > stopped && asked === 61, `${asked} after ${stopped}`);
  await page.unroute(/events\?limit=100/);
});

test('audit events are searched by actor and object, and live ones that do not match stay away', async () => {
  const { body: vault } = await api(page, 'POST', '/vaults', {
    name: `words-${run}`,
  });
  await go(page, `/audit?q=${vault.id}`);
  await row(/Vault created/).waitFor();
  await api(page, 'POST', '/vaults', { name: `others-${run}` });
  await api(page, 'PATCH', `/vaults/${vault.id}`, { description: 'changed' });
  await row(/Vault updated/).waitFor();
  assert.equal(await page.getByRole('option').count(), 2);
  await row(/Vault updated/)
    .getByText('@')
    .click();
  await until(words, (q) => /usr_/.test(q) && q.includes(vault.id));
  await row(/Vault created/).waitFor();
  assert.deepEqual(faults, []);
});
