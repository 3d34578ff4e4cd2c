// Captured bodies in the detail of a request, requests that are sent again, and dry runs.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { api, go, launch, open, signIn, until } from './browser.mjs';
import { upstream } from './upstream.mjs';

let browser, page, faults, service, endpoint;
const run = Date.now() % 1_000_000;
const policy = JSON.stringify({
  on_http_request: [
    { name: 'all', actions: [{ type: 'capture', config: {} }] },
  ],
});

before(async () => {
  browser = await launch();
  service = await upstream();
  ({ page, faults } = await open(browser, { expected: [/status of 40[01]/] }));
  await signIn(page);
  const made = await api(page, 'POST', '/endpoints', {
    url: `http://captured${run}.culvert.localhost`,
    upstream_url: service.url,
    traffic_policy: policy,
  });
  assert.equal(made.status, 201, JSON.stringify(made.body));
  endpoint = made.body;
});
after(async () => {
  await browser.close();
  service.server.close();
});

/** A POST to the endpoint by way of the edge's own address. */
async function post(path, body) {
  const { hostname, port } = new URL(endpoint.public_url);
  const { request } = await import('node:http');
  return new Promise((resolve, reject) => {
    const sent = request(
      {
        host: '127.0.0.1',
        port: port || 80,
        path,
        method: 'POST',
        headers: { host: hostname, 'content-type': 'application/json' },
      },
      (response) => {
        response.resume();
        response.on('end', () => resolve(response.statusCode));
      },
    );
    sent.on('error', reject);
    sent.end(body);
  });
}

async function kept(count) {
  const found = await until(
    () =>
      api(
        page,
        'GET',
        `/events?type=http_request_complete.v0&object_id=${endpoint.id}`,
      ),
    ({ body }) => body.events.length >= count,
  );
  return found.body.events;
}

test('a captured body is shown with its markup as text, and its request is sent again', async () => {
  await post('/do', '{"name":"<img src=x onerror=alert(1)>"}');
  await kept(1);
  await go(page, `/traffic?object=${endpoint.id}`);
  await page.getByRole('option', { name: /\/do/ }).click();
  const detail = page.getByRole('dialog', { name: 'Event' });
  await detail.getByRole('tab', { name: 'Bodies' }).click();
  const body = detail.getByRole('group', { name: 'Body of the request' });
  await body.waitFor();
  assert.match(
    await body.textContent(),
    /"name": "<img src=x onerror=alert\(1\)>"/,
  );
  await detail.getByRole('tab', { name: 'Send again' }).click();
  await detail.getByRole('button', { name: 'Send again' }).click();
  await detail.getByText(/The response has the status/).waitFor();
  await kept(2);
  await detail.getByRole('button', { name: 'Edit first' }).click();
  await detail.getByLabel('Path').fill('/changed');
  await detail.getByLabel('Body').fill('{"name":"other"}');
  await detail
    .getByRole('button', { name: 'Send the changed request' })
    .click();
  await detail.getByText(/The response has the status/).waitFor();
  const events = await kept(3);
  const changed = events.find(
    ({ event }) => event.object.http.request.url.path === '/changed',
  );
  assert.equal(
    changed.event.object.http.request.headers['Culvert-Replay-Of'].length,
    1,
  );
  assert.equal(changed.event.object.http.request.body_length, 16);
});

test('a dry run shows which rules match recent requests', async () => {
  await go(page, `/endpoints/${endpoint.id}`);
  await page
    .getByRole('button', { name: 'Run against recent requests' })
    .click();
  const results = page.getByRole('list', { name: 'Results' });
  await results.getByText('is forwarded').first().waitFor();
  await results.locator('summary').first().click();
  await results.getByText('on_http_request: capture').first().waitFor();
  assert.deepEqual(faults, []);
});
