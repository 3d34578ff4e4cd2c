// An endpoint is restricted to a network on its page, and requests from elsewhere are rejected.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { api, go, launch, open, signIn, until } from './browser.mjs';
import { upstream, visit } from './upstream.mjs';

let browser, page, faults, service;
before(async () => {
  browser = await launch();
  service = await upstream();
  ({ page, faults } = await open(browser, { expected: [/status of 400/] }));
  await signIn(page);
});
after(async () => {
  await browser.close();
  service.server.close();
});

const POLICY = '# Kept.\non_http_response:\n  - actions:\n      - type: add-headers # Kept too.\n        config: {headers: {x-seen: "1"}}\n';

test('an endpoint is restricted by IP, the restriction changed and removed, and the policy keeps its other rules', async () => {
  const { body: endpoint } = await api(page, 'POST', '/endpoints', { url: `http://restrict${Date.now() % 1_000_000}.culvert.localhost`, upstream_url: service.url, traffic_policy: POLICY });
  const policy = async () => (await api(page, 'GET', `/endpoints/${endpoint.id}`)).body.traffic_policy;
  const gives = (status) => until(() => visit(endpoint.public_url, '/'), (got) => got === status);
  const section = page.locator('section').filter({ has: page.getByRole('heading', { name: 'Restrict by IP', level: 2 }) });
  const enter = async (list, address) => {
    await section.getByLabel(list, { exact: true }).fill(address);
    await page.keyboard.press('Enter');
  };
  const button = (name) => section.getByRole('button', { name, exact: true });
  await gives(200);
  await go(page, `/endpoints/${endpoint.id}`);
  await section.getByText('rejects no client because of its address').waitFor();

  // The server refuses an invalid address, and says at which entry.
  await button('Restrict').click();
  await button('Save restriction').click();
  await section.getByText('Enter an address or choose an IP policy.').waitFor();
  await enter('Allow', 'not-an-address');
  await button('Save restriction').click();
  await section.getByText(/allow\[0\]/).waitFor();
  await section.getByLabel('Allow', { exact: true }).press('Backspace');
  // What was typed is taken, also without Enter.
  await section.getByLabel('Allow', { exact: true }).fill('203.0.113.0/24');
  await button('Save restriction').click();
  await section.getByText('203.0.113.0/24', { exact: true }).waitFor();
  await button('Change').waitFor();
  await gives(403);

  await button('Change').click();
  await enter('Allow', '127.0.0.0/8');
  await button('Save restriction').click();
  await section.getByText('127.0.0.0/8', { exact: true }).waitFor();
  await gives(200);
  const restricted = await policy();
  assert.ok(restricted.startsWith(POLICY), restricted);

  // What this page shows is no longer the policy, so it is not overwritten.
  await button('Change').click();
  const other = restricted.replace('127.0.0.0/8', '192.0.2.1');
  assert.equal((await api(page, 'PATCH', `/endpoints/${endpoint.id}`, { traffic_policy: other })).status, 200);
  await enter('Deny', '203.0.113.9');
  await button('Save restriction').click();
  await section.getByText('The policy has changed since this page showed it.').waitFor();
  assert.equal(await policy(), other);
  await button('Cancel').click();
  await section.getByText('192.0.2.1', { exact: true }).waitFor();

  await button('Remove').click();
  await page.getByRole('dialog').getByRole('button', { name: 'Remove restriction' }).click();
  await section.getByText('rejects no client because of its address').waitFor();
  assert.equal(await policy(), POLICY);
  await gives(200);

  // A restriction that is more than the form knows is shown, and stays.
  const conditional = 'on_http_request:\n  - name: admins\n    expressions: [req.url.path.startsWith("/admin")]\n    actions:\n      - type: restrict-ips\n        config: {allow: [192.0.2.1]}\n';
  const { body: second } = await api(page, 'POST', '/endpoints', { url: `http://second-${new URL(endpoint.url).host}`, upstream_url: service.url, traffic_policy: conditional });
  await go(page, `/endpoints/${second.id}`);
  await section.getByText('it applies only if its expressions are true').waitFor();
  await section.getByText('192.0.2.1', { exact: true }).waitFor();
  assert.equal(await section.getByRole('button').count(), 0);
  assert.deepEqual(faults, []);
});
