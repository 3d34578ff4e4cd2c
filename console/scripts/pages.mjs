// Takes a picture of every page at three widths in both themes: node pages.mjs DIRECTORY. A server must run; see
// scripts/screenshot. ROUTES is a pattern of those that are wanted.
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import {
  api,
  base,
  go,
  launch,
  open,
  settled,
  signIn,
} from '../tests/browser.mjs';
import { routesOf, seed } from '../tests/seed.mjs';
import { upstream, visit } from '../tests/upstream.mjs';

const WIDTHS = [1440, 768, 360];
const SCHEMES = ['light', 'dark'];
const directory = process.argv[2];
mkdirSync(directory, { recursive: true });
const wanted = new RegExp(process.env.ROUTES ?? '');

const browser = await launch();
const service = await upstream();
const { page } = await open(browser, { expected: [/./] });

const nameOf = (route) =>
  route
    .slice(1)
    .replace(/_[A-Za-z0-9]{20,}/, '')
    .replaceAll(/[/?=:]/g, '-') || 'overview';

/** A picture at each width in each theme. */
async function take(name) {
  for (const width of WIDTHS) {
    await page.setViewportSize({ width, height: width === 360 ? 760 : 900 });
    for (const colorScheme of SCHEMES) {
      await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
      await page.waitForTimeout(80);
      const path = join(directory, `${name}-${width}-${colorScheme}.png`);
      await page.screenshot({ path, fullPage: width !== 1440 });
    }
  }
}

await page.goto(`${base}/console/`);
await page.getByLabel('Token of an API key').waitFor();
if (wanted.test('/sign-in')) await take('sign-in');

await signIn(page);
await page.getByRole('heading', { name: 'Overview' }).waitFor();
const { ids, endpoint } = await seed(page, service.url);
const made = [endpoint];
for (const name of ['shop', 'orders', 'blog-of-a-customer-with-a-long-name']) {
  const { body } = await api(page, 'POST', '/endpoints', {
    url: `http://${name}.culvert.localhost`,
    upstream_url: service.url,
    description: name,
    traffic_policy:
      'on_http_request:\n  - actions:\n      - type: rate-limit\n        config: {algorithm: sliding_window, capacity: 1000, rate: 60s, bucket_key: ["conn.client_ip"]}\n',
  });
  made.push(body);
}
await api(page, 'POST', '/api_keys', {
  description: 'deploys of the shop',
  expires_at: new Date(Date.now() + 20 * 86_400_000).toISOString(),
});
await api(page, 'POST', '/users', { email: 'anna@example.com' });
await api(page, 'POST', '/reserved_domains', { domain: 'shop.example.com' });
await api(page, 'PATCH', `/endpoints/${made[1].id}`, {
  description: 'the shop, with its basket',
});
for (const one of made)
  for (const path of ['/', '/products/41?colour=blue', '/checkout/502', '/404'])
    for (let n = 0; n < 3; n += 1) await visit(one.public_url, path);
// Statistics are written every ten seconds.
await page.waitForTimeout(Number(process.env.SETTLE_MS ?? 11_000));

const routes = await routesOf(page, { ...ids, endpoints: made[1].id });
for (const route of routes.filter((one) => wanted.test(one))) {
  await page.setViewportSize({ width: 1440, height: 900 });
  await go(page, route);
  await page.getByRole('heading', { level: 1 }).first().waitFor();
  await settled(page);
  if (route.endsWith('/new') || route.endsWith('/edit'))
    await page.waitForTimeout(400);
  if (route === '/audit' || route === '/traffic')
    await page.getByRole('option').first().waitFor();
  await take(nameOf(route));
  if (route === '/traffic' || route === '/audit') {
    await page.getByRole('option').first().click();
    await page.getByRole('dialog').waitFor();
    await settled(page);
    await take(`${nameOf(route)}-event`);
    await page.keyboard.press('Escape');
  }
}
await page.setViewportSize({ width: 1440, height: 900 });
await page.keyboard.press('Control+k');
await page.getByRole('dialog', { name: 'Go to' }).waitFor();
if (wanted.test('/palette')) await take('palette');
await browser.close();
service.server.close();
