import assert from 'node:assert/strict';
import { test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { launch, open, signInByForm } from './browser.mjs';

test('the first page is under 250 KB', async (t) => {
  const browser = await launch();
  t.after(() => browser.close());
  const { page } = await open(browser);
  const bodies = [];
  page.on('response', (response) => {
    if (/\/console\/(assets\/|$)/.test(response.url()))
      bodies.push(response.body().catch(() => Buffer.alloc(0)));
  });
  await signInByForm(page);
  await page.getByText('requests a second', { exact: true }).waitFor();
  const bytes = (await Promise.all(bodies)).reduce(
    (sum, body) => sum + gzipSync(body).length,
    0,
  );
  t.diagnostic(`${bytes} bytes under gzip, ${bodies.length} files`);
  assert.ok(bytes > 100_000 && bytes < 250_000, `${bytes} bytes`);
});
