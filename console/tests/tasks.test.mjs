// The main task of each page, end to end.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { api, go, launch, open, signIn } from './browser.mjs';
import { upstream, visit } from './upstream.mjs';

let browser, page, faults, service;
const run = Date.now() % 1_000_000;
before(async () => {
  browser = await launch();
  service = await upstream();
  ({ page, faults } = await open(browser, { expected: [/status of 40[014]/] }));
  await signIn(page);
});
after(async () => {
  await browser.close();
  service.server.close();
});

const box = (name) => page.getByRole('textbox', { name, exact: true });

async function remove(name) {
  await page.getByRole('button', { name: 'Delete', exact: true }).click();
  const dialog = page.getByRole('dialog');
  assert.ok(await dialog.getByRole('button', { name: 'Delete' }).isDisabled());
  await dialog.getByLabel(`Type ${name} to confirm`).fill(name);
  await dialog.getByRole('button', { name: 'Delete' }).click();
  await page.getByText(`Deleted ${name}.`).waitFor();
}

test('an API key is made, its token shown once, found by a filter, changed and deleted', async () => {
  const name = `deploys ${run}`;
  await go(page, '/api_keys');
  await page.getByRole('link', { name: 'Create an API key' }).click();
  await box('Description').fill(name);
  await page.getByText('As a command').click();
  await page
    .getByText(`api_keys create --description 'deploys ${run}'`)
    .waitFor();
  await page.getByRole('button', { name: 'Create', exact: true }).click();
  await page.getByText('It is not shown again.').waitFor();
  await page.getByRole('button', { name: 'I have copied it' }).click();
  await page.getByRole('heading', { name, level: 1 }).waitFor();
  await go(page, '/api_keys');
  await page.getByLabel('Filter').fill(`obj.description == "${name}"`);
  await page.keyboard.press('Enter');
  await page.getByRole('link', { name }).click();
  await page.getByRole('link', { name: 'Edit' }).click();
  await box('Description').fill(`${name} x`);
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByRole('heading', { name: `${name} x`, level: 1 }).waitFor();
  await remove(`${name} x`);
});

test('a filter that is wrong is told at the filter', async () => {
  await go(page, '/endpoints?filter=obj.bogus');
  await page.getByText(/`obj\.bogus`/).waitFor();
});

test('an endpoint is made with a policy, a mistake is told at its field, and its traffic is seen live', async () => {
  const host = `task${run}.culvert.localhost`;
  await go(page, '/endpoints');
  await page.getByRole('link', { name: 'Create an endpoint' }).first().click();
  await box('URL').fill(`http://${host}`);
  await box('Upstream URL').fill('nonsense');
  await page.getByRole('button', { name: 'Create', exact: true }).click();
  await page.getByRole('alert').first().waitFor();
  assert.equal(await box('Upstream URL').getAttribute('aria-invalid'), 'true');
  await box('Upstream URL').fill(service.url);
  await page
    .getByRole('textbox', { name: 'Traffic policy' })
    .fill(
      'on_http_response:\n  - actions:\n      - type: add-headers\n        config: {headers: {x-seen: "1"}}\n',
    );
  await page.getByRole('button', { name: 'Create', exact: true }).click();
  await page
    .getByRole('heading', { name: `http://${host}`, level: 1 })
    .waitFor();
  await page.getByRole('link', { name: 'All its traffic' }).click();
  await page.getByText('Live', { exact: true }).waitFor();
  const { body } = await api(
    page,
    'GET',
    `/endpoints?filter=${encodeURIComponent(`obj.url == "http://${host}"`)}`,
  );
  const url = body.endpoints[0].public_url;
  for (const path of ['/a', '/b/500', '/c/404']) await visit(url, path);
  const row = page.getByRole('option', { name: /\/b\/500/ });
  await row.click();
  const detail = page.getByRole('dialog', { name: 'Event' });
  await detail.getByRole('tab', { name: 'As curl' }).click();
  await detail.getByText(`curl -X GET '${url}/b/500'`).waitFor();
  await detail.getByRole('button', { name: 'Close' }).click();
  await page.getByRole('button', { name: 'Pause' }).click();
  await visit(url, '/later');
  await page.getByText('1 newer').waitFor();
  assert.equal(await page.getByRole('option', { name: /later/ }).count(), 0);
  await page.getByRole('button', { name: 'Go on' }).click();
  await page.getByRole('option', { name: /later/ }).waitFor();
});

test('a destination and a subscription are made, a test event is sent, and a replay runs', async () => {
  await go(page, '/event_destinations/new');
  await page.getByRole('button', { name: /^File/ }).click();
  await box('Path').fill(`task${run}.ndjson`);
  await box('Description').fill(`file ${run}`);
  await page.getByRole('button', { name: 'Create', exact: true }).click();
  const wizard = page.getByRole('dialog', {
    name: 'Create a destination: File',
  });
  await wizard.getByRole('button', { name: 'Send a test event' }).click();
  await wizard.getByText('The destination took the test event.').waitFor();
  await wizard.getByRole('button', { name: 'Finish' }).click();
  await page.getByRole('heading', { name: `file ${run}`, level: 1 }).waitFor();
  await page.getByRole('button', { name: 'Send a test event' }).click();
  await page.getByText('The destination took the test event.').waitFor();
  await page.getByRole('link', { name: 'Add a subscription' }).click();
  await page.getByRole('combobox', { name: 'Destinations' }).click();
  await page.getByRole('option', { name: new RegExp(`file ${run}`) }).click();
  await page.keyboard.press('Escape');
  await page.getByRole('button', { name: 'Add source' }).click();
  await page.getByRole('combobox', { name: 'Type' }).click();
  await page.getByRole('combobox', { name: 'Type' }).fill('http_request');
  await page.getByRole('option', { name: 'http_request_complete.v0' }).click();
  await page.getByRole('combobox', { name: 'Fields' }).fill('status_code');
  await page.getByRole('option', { name: 'http.response.status_code' }).click();
  await page.keyboard.press('Escape');
  await page
    .getByRole('textbox', { name: 'Filter' })
    .last()
    .fill('ev.conn.server_port == 443');
  await box('Description').fill(`subscription ${run}`);
  await page.getByRole('button', { name: 'Create', exact: true }).click();
  await page
    .getByRole('heading', { name: `subscription ${run}`, level: 1 })
    .waitFor();
  await page.getByText('ev.conn.server_port == 443').first().waitFor();
  await page.locator('main a[href*="/event_destinations/ed_"]').first().click();
  await page.getByRole('button', { name: 'Replay events' }).click();
  await page.getByLabel('From').fill('2026-01-01T00:00:00');
  await page.getByRole('combobox', { name: 'Kinds' }).fill('API key created');
  await page.getByRole('option', { name: 'API key created' }).click();
  await page.keyboard.press('Escape');
  await page.getByRole('button', { name: 'Start' }).click();
  await page.getByText('The last replay was of events').waitFor();
  await page.getByRole('heading', { name: 'Dead letters' }).waitFor();
});

test('dead letters are shown with their reason and sent again', async () => {
  const refusing = await api(page, 'POST', '/event_destinations', {
    format: 'json',
    description: `dead ${run}`,
    target: { file: { path: `dead${run}.ndjson` } },
  });
  const letter = {
    id: '7',
    class: 'audit',
    attempts: 3,
    first_at: '2026-01-01T00:00:00Z',
    buried_at: '2026-01-01T00:01:00Z',
    reason: { class: 'permanent', code: '422', text: 'It was refused.' },
    events: [{ event_id: 'ev_1' }],
  };
  await page.route('**/dead_letters?*', (route) =>
    route.fulfill({ json: { dead_letters: [letter], next_page_uri: null } }),
  );
  await go(page, `/event_destinations/${refusing.body.id}`);
  await page.getByText('It was refused.').waitFor();
  await page.getByRole('button', { name: 'Send all again' }).click();
  await page.getByText('0 dead letters sent to the queue again.').waitFor();
  await page.unroute('**/dead_letters?*');
});

test('a domain says what it needs', async () => {
  await go(page, '/reserved_domains/new');
  await box('Domain').fill(`task${run}.example.com`);
  await page.getByRole('button', { name: 'Create', exact: true }).click();
  await page
    .getByRole('heading', { name: `task${run}.example.com`, level: 1 })
    .waitFor();
  await page.getByRole('heading', { name: 'Certificate' }).waitFor();
  await remove(`task${run}.example.com`);
});

test('an agent is connected by a command that holds its new token', async () => {
  await go(page, '/connect');
  await page.getByRole('button', { name: 'Create a credential' }).click();
  await page.getByText('The commands below have it.').waitFor();
  await page
    .getByText(/^CULVERT_AUTHTOKEN=\S{20,} culvert http 3000/m)
    .waitFor();
});

test('a change is seen live on the audit page', async () => {
  await go(page, '/audit');
  await page.getByText('Live', { exact: true }).waitFor();
  await api(page, 'POST', '/api_keys', { description: `audited ${run}` });
  await page
    .getByRole('option', {
      name: new RegExp(`API key created.*audited ${run}`),
    })
    .click();
  await page
    .getByRole('dialog', { name: 'Event' })
    .getByRole('link', { name: 'Open the object' })
    .click();
  await page
    .getByRole('heading', { name: `audited ${run}`, level: 1 })
    .waitFor();
});

test('the endpoint of a host is found, with the reason', async () => {
  const made = await api(page, 'POST', '/endpoints', {
    url: `http://*.which${run}.culvert.localhost`,
    upstream_url: service.url,
  });
  assert.equal(made.status, 201, made.body.msg);
  await go(page, '/endpoints');
  await page.getByText('Which endpoint serves a host?').click();
  await box('Host or URL').fill(
    `http://a.b.which${run}.culvert.localhost:8080/path`,
  );
  await page.getByRole('button', { name: 'Find' }).click();
  await page.getByText('this is the closest wildcard').waitFor();
  await page
    .getByRole('link', { name: `http://*.which${run}.culvert.localhost` })
    .first()
    .waitFor();
  await box('Host or URL').fill('nobody.example.com');
  await page.getByRole('button', { name: 'Find' }).click();
  await page.getByText(/No endpoint serves/).waitFor();
});

test('a change is shown with the value before and after it', async () => {
  const { body: made } = await api(page, 'POST', '/vaults', {
    name: `diff-${run}`,
    description: 'old words',
  });
  await api(page, 'PATCH', `/vaults/${made.id}`, { description: 'new words' });
  await go(page, `/audit?object=${made.id}`);
  await page.getByRole('option', { name: /Vault updated/ }).click();
  const row = page
    .getByRole('dialog', { name: 'Event' })
    .getByRole('row', { name: /description/ });
  await row.waitFor();
  assert.match(await row.innerText(), /old words[\s\S]*new words/);
});

test('the palette goes to pages and to objects, by keyboard alone', async () => {
  await go(page, '/');
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  await page.keyboard.press('Control+k');
  await page
    .getByRole('combobox', { name: 'Page, name, id or token' })
    .waitFor();
  await page.keyboard.type('secrets');
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { name: 'Secrets', level: 1 }).waitFor();
  await page.keyboard.press('Control+k');
  await page
    .getByRole('combobox', { name: 'Page, name, id or token' })
    .fill(`audited ${run}`);
  await page.getByRole('option', { name: `audited ${run}` }).waitFor();
  await page.keyboard.press('Enter');
  await page
    .getByRole('heading', { name: `audited ${run}`, level: 1 })
    .waitFor();
});

test('the palette finds an old object by its description, and actions by any wording', async () => {
  const { body: old } = await api(page, 'POST', '/endpoints', {
    url: `http://palette${run}.culvert.localhost`,
    upstream_url: service.url,
    description: `The lighthouse of ${run}`,
  });
  // More keys than a list shows at once are newer than it.
  await page.evaluate(async () => {
    const make = () =>
      fetch('/console/api/ip_policies', {
        method: 'POST',
        headers: {
          'x-culvert-console': '1',
          'content-type': 'application/json',
        },
        body: '{}',
      });
    for (let n = 0; n < 105; n += 1) await make();
  });
  await go(page, '/');
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  const search = page.getByRole('combobox', {
    name: 'Page, name, id or token',
  });
  await page.keyboard.press('Control+k');
  await search.fill(`lighthouse of ${run}`);
  await page
    .getByRole('option', { name: new RegExp(`palette${run}.*endpoint`) })
    .waitFor();
  await page.keyboard.press('Enter');
  await page.waitForURL(`**/endpoints/${old.id}`);
  for (const [words, action] of [
    ['make endpoint', 'Create an endpoint'],
    ['new key', 'Create an API key'],
    ['add domain', 'Create a domain'],
    ['log out', 'Sign out'],
    ['dark mode', 'Use dark colours'],
  ]) {
    await page.keyboard.press('Control+k');
    await search.fill(words);
    await page
      .getByRole('option', { name: action })
      .and(page.locator('[aria-selected="true"]'))
      .waitFor();
    await page.keyboard.press('Escape');
    await search.waitFor({ state: 'detached' });
  }
  await page.keyboard.press('Control+k');
  await search.fill('dark mode');
  await page.getByRole('option', { name: 'Use dark colours' }).waitFor();
  await page.keyboard.press('Enter');
  await page.locator('html[data-mantine-color-scheme="dark"]').waitFor();
  await page.getByRole('button', { name: 'Use light colours' }).click();
});

test('a list is exported whole, however long it is', async () => {
  await go(page, '/ip_policies');
  await page.getByRole('button', { name: 'Export' }).click();
  const download = page.waitForEvent('download');
  await page.getByRole('button', { name: 'CSV' }).click();
  const written = readFileSync(await (await download).path(), 'utf8');
  const [head, ...rows] = written.trimEnd().split('\r\n');
  assert.match(head, /(^|,)id(,|$)/);
  assert.ok(rows.length >= 105, `${rows.length} rows`);
  assert.equal(new Set(rows).size, rows.length);
  await page.getByText(`${rows.length} rows written.`).waitFor();
});

test('the page of an endpoint begins with what it is, where it goes and whether that answers', async () => {
  const { body: made } = await api(page, 'POST', '/endpoints', {
    url: `http://glance${run}.culvert.localhost`,
    upstream_url: service.url,
    traffic_policy:
      'on_http_response:\n  - actions:\n      - type: add-headers\n        config: {headers: {x-seen: "1"}}\n',
  });
  await go(page, `/endpoints/${made.id}`);
  const glance = page.getByLabel('At a glance');
  await glance.getByText('No request yet').waitFor();
  await glance.getByText(service.url).waitFor();
  await glance.getByText('add-headers').waitFor();
  await visit(made.public_url, '/seen');
  await glance.getByText('Answers').waitFor();
  await page
    .getByRole('list', { name: 'Newest traffic' })
    .getByRole('link', { name: 'GET /seen' })
    .waitFor();
  const titles = await page
    .getByRole('main')
    .getByRole('heading', { level: 2 })
    .allInnerTexts();
  assert.equal(titles[0], 'Newest traffic');
  assert.equal(titles.at(-1), 'All fields');
});

test('a pasted token leads to its key, and is sent nowhere', async () => {
  const { body: key } = await api(page, 'POST', '/api_keys', {
    description: `pasted ${run}`,
  });
  const sent = [];
  page.on('request', (request) =>
    sent.push(request.url() + (request.postData() ?? '')),
  );
  await go(page, '/');
  await page.keyboard.press('Control+k');
  await page
    .getByRole('combobox', { name: 'Page, name, id or token' })
    .fill(` ${key.token} `);
  await page
    .getByRole('option', { name: 'The API key of this token' })
    .waitFor();
  await page.keyboard.press('Enter');
  await page
    .getByRole('heading', { name: `pasted ${run}`, level: 1 })
    .waitFor();
  assert.ok(!page.url().includes(key.token));
  assert.ok(sent.every((one) => !one.includes(key.token.slice(-27))));

  // A leaked token: its page says so.
  const report = {
    tokens: [{ token: key.token, url: 'https://git.example/x' }],
  };
  assert.equal((await api(page, 'POST', '/leaked_tokens', report)).status, 204);
  await page.reload();
  await page.getByText('Revoked', { exact: true }).waitFor();
  await page.getByText('https://git.example/x').waitFor();
});

test('none of this left an error in the console', () =>
  assert.deepEqual(faults, []));
