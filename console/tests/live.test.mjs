import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { base, launch, open, signIn } from './browser.mjs';

const EVENTS = 10_000;
let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());

const message = (n) =>
  `data: ${JSON.stringify({
    endpoint_id: null,
    audit: null,
    event: {
      event_id: `ev_${n}`,
      event_type: 'http_request_complete.v0',
      event_timestamp: new Date(0).toISOString(),
      principal: null,
      object: {
        conn: { server_name: 'app.example.com' },
        http: {
          request: { method: 'get', url: { path: `/${n}`, query: '' } },
          response: { status_code: 200, body_length: 5 },
        },
      },
    },
  })}\n\n`;

test(`${EVENTS} events at once: bounded, few rows in the page, what was lost is told`, async () => {
  const { page, context, faults } = await open(browser, {
    expected: [/status of 401/],
  });
  await signIn(page);
  const body = `: following\n\n${Array.from({ length: EVENTS }, (_, n) => message(n)).join('')}event: lost\ndata: {"lost":42}\n\n`;
  let served = false;
  await context.route(
    '**/events?follow=true*tcp_connection_closed*',
    (route) => {
      if (served) return undefined;
      served = true;
      return route.fulfill({
        status: 200,
        contentType: 'text/event-stream',
        body,
      });
    },
  );
  await page.goto(`${base}/console/traffic`);
  await page.getByText('42 dropped').waitFor();
  await page.getByText('5,000 shown').waitFor();
  await page.getByRole('option', { name: `/${EVENTS - 1}` }).waitFor();
  assert.ok((await page.getByRole('option').count()) < 120);
  await page
    .getByRole('listbox', { name: 'Traffic' })
    .evaluate((list) => list.scrollTo(0, 100_000));
  await page
    .getByRole('option', { name: `/${EVENTS - 5000}`, exact: false })
    .or(page.getByRole('option', { name: '/7' }))
    .first()
    .waitFor();
  assert.deepEqual(faults, []);
  await context.close();
});

test('tabs that follow the same events share one stream, and the next tab takes over', async () => {
  const { page, context } = await open(browser, {
    expected: [/status of 401/],
  });
  await signIn(page);
  const streams = [];
  context.on(
    'request',
    (request) =>
      /events\?follow=true.*tcp_connection_closed/.test(request.url()) &&
      streams.push(request),
  );
  await page.goto(`${base}/console/traffic`);
  await page.getByText('Live', { exact: true }).waitFor();
  const second = await context.newPage();
  await second.goto(`${base}/console/traffic`);
  await second.getByText('Live', { exact: true }).waitFor();
  assert.equal(streams.length, 1);
  await page.close();
  await second.waitForEvent('request', {
    predicate: (request) => /events\?follow/.test(request.url()),
  });
  await second.getByText('Live', { exact: true }).waitFor();
  assert.equal(streams.length, 2);
  await context.close();
});
