// Measures the first load over a slow line, with an empty cache: node scripts/first-load.mjs [LATENCY_MS BYTES_PER_SECOND].
// A server must run: CULVERT_CONSOLE_URL and CULVERT_API_KEY as for the tests.
import { base, launch, open, signIn } from '../tests/browser.mjs';

const [latency = 400, rate = 50_000] = process.argv.slice(2).map(Number);
const browser = await launch();

async function measure(name, page, target) {
  const client = await page.context().newCDPSession(page);
  await client.send('Network.enable');
  await client.send('Network.setCacheDisabled', { cacheDisabled: true });
  await client.send('Network.emulateNetworkConditions', {
    offline: false,
    latency,
    downloadThroughput: rate,
    uploadThroughput: rate,
  });
  const started = performance.now();
  await page.goto(`${base}/console/`, { waitUntil: 'commit' });
  await target.waitFor();
  const seconds = (performance.now() - started) / 1000;
  console.log(`${name}: ${seconds.toFixed(2)} s`);
}

for (let n = 0; n < 3; n += 1) {
  const { page, context } = await open(browser, { expected: [/./] });
  await measure('sign-in', page, page.getByLabel('Token of an API key'));
  await context.close();
}
for (let n = 0; n < 3; n += 1) {
  const { page, context } = await open(browser, { expected: [/./] });
  await signIn(page);
  const figures = page.getByText('requests a second', { exact: true });
  await figures.waitFor();
  await page.goto('about:blank');
  // The frame, the figures and what was read are there.
  const counted = page.getByRole('link', { name: /^\d+\+? ?Endpoints$/ });
  await measure(
    'overview',
    page,
    page.locator('body').filter({ has: figures }).filter({ has: counted }),
  );
  await context.close();
}
await browser.close();
