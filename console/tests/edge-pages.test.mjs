// Pages that the edge makes: no script and no other request, no fault of accessibility, and room on a phone.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { launch } from './browser.mjs';

const axe = readFileSync(
  new URL('../node_modules/axe-core/axe.min.js', import.meta.url),
  'utf8',
);
const run = Date.now() % 1_000_000;
const policy = {
  on_http_request: [
    { expressions: ["req.url.path == '/denied'"], actions: [{ type: 'deny' }] },
    {
      expressions: ["req.url.path == '/limited'"],
      actions: [
        {
          type: 'rate-limit',
          config: { capacity: 1, rate: '60s', bucket_key: ["'all'"] },
        },
      ],
    },
    {
      expressions: ["req.url.path == '/token'"],
      actions: [
        {
          type: 'jwt-validation',
          config: {
            issuer: { allow_list: [{ value: 'https://issuer.example' }] },
            audience: { allow_list: [{ value: 'site' }] },
            http: {
              tokens: [{ type: 'jwt', method: 'header', name: 'x-token' }],
            },
            jws: {
              allowed_algorithms: ['RS256'],
              keys: {
                sources: { additional_jkus: ['https://issuer.example/keys'] },
              },
            },
          },
        },
      ],
    },
  ],
};

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());

/** Creates an endpoint and returns its URL. */
async function create(name, fields) {
  const made = await fetch(`${process.env.CULVERT_API_URL}/endpoints`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${process.env.CULVERT_API_KEY}`,
      'content-type': 'application/json',
    },
    body: JSON.stringify({
      url: `http://${name}${run}.culvert.localhost`,
      ...fields,
    }),
  });
  const body = await made.json();
  assert.equal(made.status, 201, JSON.stringify(body));
  return body.public_url;
}

test('pages of the edge work without scripts and are accessible', async () => {
  const [, port] = process.env.CULVERT_HTTP.split(':');
  const governed = await create('pages', {
    upstream_url: 'http://127.0.0.1:1',
    traffic_policy: JSON.stringify(policy),
  });
  const cases = [
    [`http://unknown${run}.culvert.localhost:${port}/`, 404],
    [`${governed}/`, 502],
    [`${governed}/denied`, 403],
    [`${governed}/limited`, 429],
    [`${governed}/token`, 401],
  ];
  const context = await browser.newContext();
  const page = await context.newPage();
  const faults = [];
  page.on('console', (message) => {
    const isStatus = message.text().startsWith('Failed to load resource');
    if (message.type() === 'error' && !isStatus) faults.push(message.text());
  });
  for (const [url, status] of cases) {
    const requests = [];
    const note = (request) => requests.push(request.url());
    page.on('request', note);
    let response = await page.goto(url);
    // The first request in a minute passes the rate limit.
    if (url.endsWith('/limited') && response.status() !== status)
      response = await page.reload();
    page.off('request', note);
    assert.equal(response.status(), status, url);
    const others = requests.filter(
      (one) => one !== url && !one.endsWith('/favicon.ico'),
    );
    assert.deepEqual(others, [], url);
    const id = response.headers()['culvert-request-id'];
    assert.equal(await page.locator('dd.id').textContent(), id);
    // An evaluated script is not subject to the policy of the page.
    await page.evaluate(axe);
    for (const colorScheme of ['light', 'dark']) {
      await page.emulateMedia({ colorScheme });
      for (const width of [360, 768, 1440]) {
        await page.setViewportSize({ width, height: 800 });
        assert.equal(
          await page.evaluate(
            () => document.documentElement.scrollWidth <= innerWidth,
          ),
          true,
          `${url} at ${width}`,
        );
        const { violations } = await page.evaluate(() => globalThis.axe.run());
        assert.deepEqual(
          violations.map((one) => one.id),
          [],
          `${url} ${colorScheme} ${width}`,
        );
      }
    }
  }
  assert.deepEqual(faults, []);
  await context.close();
});
