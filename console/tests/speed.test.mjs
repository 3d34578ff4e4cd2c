// What is measured: how many events a second a live view takes.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { launch, open, signIn, base } from './browser.mjs';

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());

test(
  '1,000 events a second keep 50 frames a second',
  { timeout: 120_000 },
  async (t) => {
    const { page, context } = await open(browser, {
      expected: [/status of 401/],
    });
    await signIn(page);
    // The stream is made in the page: ten seconds of it, in batches as the server sends them.
    await page.addInitScript(() => {
      const real = globalThis.fetch;
      globalThis.fetch = (input, init) => {
        const url = typeof input === 'string' ? input : input.url;
        if (!/events\?follow=true.*tcp_connection_closed/.test(url))
          return real(input, init);
        let n = 0;
        const encoder = new TextEncoder();
        const body = new ReadableStream({
          start(controller) {
            const started = performance.now();
            const timer = setInterval(() => {
              const due = Math.min(10_000, performance.now() - started);
              let text = '';
              for (; n < due; n += 1) {
                text += `data: ${JSON.stringify({
                  endpoint_id: null,
                  audit: null,
                  event: {
                    event_id: `ev_${n}`,
                    event_type: 'http_request_complete.v0',
                    event_timestamp: new Date().toISOString(),
                    principal: null,
                    object: {
                      conn: { server_name: 'app.example.com' },
                      http: {
                        request: {
                          method: 'get',
                          url: { path: `/${n}`, query: '' },
                        },
                        response: { status_code: 200, body_length: 5 },
                      },
                    },
                  },
                })}\n\n`;
              }
              if (text) controller.enqueue(encoder.encode(text));
              if (due === 10_000) clearInterval(timer);
            }, 10);
          },
        });
        return Promise.resolve(
          new Response(body, {
            status: 200,
            headers: { 'content-type': 'text/event-stream' },
          }),
        );
      };
    });
    await page.goto(`${base}/console/traffic`);
    await page.getByText('Live', { exact: true }).waitFor();
    // What the page itself needs for a second of events: a busy machine makes frames late, but not this longer.
    const session = await context.newCDPSession(page);
    await session.send('Performance.enable');
    const busy = async () =>
      Object.fromEntries(
        (await session.send('Performance.getMetrics')).metrics.map(
          ({ name, value }) => [name, value],
        ),
      );
    const before = await busy();
    const frames = await page.evaluate(
      () =>
        new Promise((resolve) => {
          let count = 0;
          const started = performance.now();
          const frame = (now) => {
            count += 1;
            if (now - started > 5000) resolve((count * 1000) / (now - started));
            else requestAnimationFrame(frame);
          };
          requestAnimationFrame(frame);
        }),
    );
    const after = await busy();
    const share =
      (after.TaskDuration - before.TaskDuration) /
      (after.Timestamp - before.Timestamp);
    t.diagnostic(
      `${frames.toFixed(1)} frames a second; the page is busy for ${(share * 100).toFixed(0)} % of the time`,
    );
    assert.ok(
      frames >= 50 || share < 0.8,
      `${frames} frames a second, busy ${share}`,
    );
    await context.close();
  },
);
