// Statistics: the charts of Overview and of an endpoint, the rates in the list of endpoints, and the nodes.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { api, go, launch, open, settled, signIn, until } from './browser.mjs';
import { upstream, visit } from './upstream.mjs';

let browser, page, faults, service, endpoint;
const run = Date.now() % 1_000_000;
before(async () => {
  browser = await launch();
  service = await upstream();
  ({ page, faults } = await open(browser, { expected: [/status of 401/] }));
  await signIn(page);
  const made = await api(page, 'POST', '/endpoints', {
    url: `http://stats${run}.culvert.localhost`,
    upstream_url: service.url,
  });
  assert.equal(made.status, 201, JSON.stringify(made.body));
  endpoint = made.body;
  for (let n = 0; n < 12; n += 1)
    await visit(endpoint.public_url, n % 4 === 3 ? '/broken/500' : '/fine');
  await until(
    () => api(page, 'GET', `/statistics?subject=endpoint&id=${endpoint.id}`),
    ({ body }) => body.total.traffic.requests >= 12,
  );
});
after(async () => {
  await browser.close();
  service.server.close();
});

test('an endpoint shows what was counted, as a chart and as text', async () => {
  await go(page, `/endpoints/${endpoint.id}`);
  await page
    .getByRole('img', { name: /^Requests a second by status: 2xx/ })
    .waitFor();
  await page
    .getByRole('img', { name: /^Latency: p50/ })
    .locator('path')
    .first()
    .waitFor({ state: 'attached' });
  assert.equal(await page.locator('figure svg').count(), 5);
  const box = await page
    .getByRole('img', { name: /^Error rate/ })
    .boundingBox();
  // The pointer names a moment in all charts.
  await page.mouse.move(box.x + box.width - 20, box.y + box.height / 2);
  await page.waitForFunction(
    () =>
      [...document.querySelectorAll('figcaption span')].filter(
        (one) => one.textContent !== '',
      ).length === 5,
  );
  await page.getByRole('button', { name: 'Day', exact: true }).click();
  await page
    .getByRole('button', { name: 'Day', exact: true, pressed: true })
    .waitFor();
  await page.getByRole('img', { name: /^Bytes a second: in/ }).waitFor();
});

test('Overview has totals, charts and the busiest endpoints for a range in its address', async () => {
  await go(page, '/?range=6h');
  await page.getByRole('button', { name: '6 hours', pressed: true }).waitFor();
  const row = page.getByRole('row', { name: new RegExp(`stats${run}`) });
  await row.waitFor();
  assert.match(await row.innerText(), /\b12\b[\s\S]*25 %/);
  await page.getByRole('button', { name: 'Week' }).click();
  await page.waitForURL(/range=7d/);
  await page
    .getByRole('img', { name: /^Requests a second by status/ })
    .waitFor();
});

test('the list of endpoints has a live rate', async () => {
  await visit(endpoint.public_url, '/again');
  await go(page, '/endpoints');
  await page.getByRole('columnheader', { name: 'Requests a second' }).waitFor();
  const row = page.getByRole('row', { name: new RegExp(`stats${run}`) });
  await row.getByText(/^0\.\d+$/).waitFor({ timeout: 30_000 });
});

test('the nodes describe themselves', async () => {
  await go(page, '/nodes');
  await page.getByText('Online', { exact: true }).waitFor();
  await page.getByText('Current', { exact: true }).waitFor();
  await page
    .getByText(/SQLite|PostgreSQL/)
    .first()
    .waitFor();
  await page.getByRole('img', { name: /^Memory: resident \d/ }).waitFor();
  await settled(page);
  assert.deepEqual(faults, []);
});

test("a key that is not an admin's sees no nodes", async () => {
  const bot = await api(page, 'POST', '/bot_users', { name: `stats${run}` });
  const key = await api(page, 'POST', '/api_keys', { owner_id: bot.body.id });
  const other = await open(browser, { expected: [/status of 40[13]/] });
  await signIn(other.page, '/console/nodes', key.body.token);
  await other.page.getByText('You may not do this').waitFor();
  await go(other.page, '/');
  await other.page
    .getByRole('row', { name: new RegExp(`stats${run}`) })
    .waitFor();
  assert.deepEqual(other.faults, []);
});
