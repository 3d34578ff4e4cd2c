// Kept events: searched on the pages of traffic and of the audit log, page by page.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { api, base, launch, open, signIn, until } from './browser.mjs';
import { upstream, visit } from './upstream.mjs';

let browser, page, faults, service;
const run = Date.now() % 1_000_000;
before(async () => {
  browser = await launch();
  service = await upstream();
  ({ page, faults } = await open(browser, { expected: [/status of 40[01]/] }));
  await signIn(page);
});
after(async () => {
  await browser.close();
  service.server.close();
});

test('kept requests are found by a filter, and lead to their endpoint', async () => {
  const made = await api(page, 'POST', '/endpoints', { url: `http://kept${run}.culvert.localhost`, upstream_url: service.url });
  assert.equal(made.status, 201, JSON.stringify(made.body));
  const { id, public_url: url } = made.body;
  for (const path of ['/first', '/second/500', '/third']) await visit(url, path);
  await until(() => api(page, 'GET', `/events?type=http_request_complete.v0&object_id=${id}`), ({ body }) => body.events.length >= 3);
  await page.goto(`${base}/console/traffic`);
  await page.getByText('Kept', { exact: true }).click();
  await page.getByLabel('Endpoint ID').fill(id);
  await page.getByRole('button', { name: 'Search' }).click();
  await page.getByRole('option', { name: /third/ }).waitFor();
  await page.getByRole('option', { name: /second/ }).click();
  const detail = page.getByRole('dialog', { name: 'Event' });
  await detail.getByRole('link', { name: 'Open the endpoint' }).waitFor();
  await detail.getByRole('button', { name: 'Close' }).click();
  const filter = encodeURIComponent('ev.http.response.status_code == 500');
  await page.goto(`${base}/console/traffic?view=kept&object=${id}&filter=${filter}`);
  await page.getByRole('option', { name: /second/ }).waitFor();
  assert.equal(await page.getByRole('option', { name: /first|third/ }).count(), 0);
  await page.goto(`${base}/console/traffic?view=kept&filter=ev.bogus`);
  await page.getByText(/no field "bogus"/).waitFor();
});

test('on a phone, results are in sight, and the conditions open above them', async () => {
  const made = await api(page, 'POST', '/endpoints', { url: `http://phone${run}.culvert.localhost`, upstream_url: service.url });
  await visit(made.body.public_url, '/small');
  const phone = await open(browser, { width: 360, height: 640, expected: [/status of 401/] });
  await signIn(phone.page, `/console/traffic?view=kept&object=${made.body.id}`);
  const row = phone.page.getByRole('option', { name: /small/ });
  await row.waitFor();
  const { y, height } = await row.boundingBox();
  assert.ok(y + height < 640, `${y + height} px down`);
  const endpoint = phone.page.getByLabel('Endpoint ID');
  assert.equal(await endpoint.isVisible(), false);
  await phone.page.getByRole('button', { name: 'Conditions (1)', expanded: false }).click();
  assert.equal(await endpoint.inputValue(), made.body.id);
  await endpoint.fill('');
  await phone.page.getByRole('button', { name: 'Search' }).click();
  await phone.page.waitForURL((url) => !url.searchParams.has('object'));
  await row.waitFor();
  assert.deepEqual(phone.faults, []);
  await phone.context.close();
});

test('the audit log is read page by page, with its positions', async () => {
  await page.evaluate(async ([count, name]) => {
    for (let n = 0; n < count; n += 1) {
      const headers = { 'x-culvert-console': '1', 'content-type': 'application/json' };
      await fetch('/console/api/vaults', { method: 'POST', headers, body: JSON.stringify({ name: `${name}-${n}` }) });
    }
  }, [105, `kept-${run}`]);
  await page.goto(`${base}/console/audit?view=kept&type=vault_created.v0`);
  await page.getByRole('option', { name: new RegExp(`kept-${run}-104`) }).click();
  const detail = page.getByRole('dialog', { name: 'Event' });
  await detail.getByText(/^[0-9a-f]{64}$/).waitFor();
  await detail.getByRole('button', { name: 'Close' }).click();
  // Older events follow as one scrolls, without a button.
  await page.getByText(/^\d+ events loaded. Older ones follow/).or(page.getByText(/^All \d+ events that match are loaded/)).waitFor();
  await page.getByRole('listbox', { name: 'Audit' }).evaluate((list) => list.scrollTo(0, list.scrollHeight));
  await page.getByRole('option', { name: new RegExp(`kept-${run}-4$`) }).waitFor();
  assert.ok(await page.getByRole('option').count() < 100);
  await page.getByRole('listbox', { name: 'Audit' }).evaluate((list) => list.scrollTo(0, 0));
  await page.getByRole('option', { name: new RegExp(`kept-${run}-104`) }).waitFor();
  assert.deepEqual(faults, []);
});

test('a member sees the audit log without what only admins may read, and is told so', async () => {
  const bot = await api(page, 'POST', '/bot_users', { name: `member-${run}` });
  const key = await api(page, 'POST', '/api_keys', { owner_id: bot.body.id });
  await api(page, 'POST', '/vaults', { name: `for-members-${run}` });
  const member = await open(browser, { expected: [/status of 401/] });
  await signIn(member.page, '/console/', key.body.token);
  await member.page.goto(`${base}/console/audit?view=kept`);
  await member.page.getByRole('option', { name: new RegExp(`for-members-${run}`) }).waitFor();
  await member.page.getByText(/types of events, about keys, credentials and agent sessions, are visible to admins only/).waitFor();
  assert.equal(await member.page.getByRole('option', { name: /API key/i }).count(), 0);
  await member.page.getByText('Now', { exact: true }).click();
  await member.page.getByText('Nothing has changed since you opened this page').waitFor();
  await member.page.getByText(/visible to admins only/).waitFor();
  await api(page, 'POST', '/vaults', { name: `seen-live-${run}` });
  await member.page.getByRole('option', { name: new RegExp(`seen-live-${run}`) }).waitFor();
  assert.deepEqual(member.faults, []);
  await member.context.close();
  await page.goto(`${base}/console/audit?view=kept`);
  await page.getByRole('option', { name: new RegExp(`for-members-${run}`) }).waitFor();
  assert.equal(await page.getByText(/visible to admins only/).count(), 0);
  assert.deepEqual(faults, []);
});
