// Measures the first load over a slow line, with an empty cache: node scripts/first-load.mjs [LATENCY_MS BYTES_PER_SECOND].
// A server must run: CULVERT_CONSOLE_URL and CULVERT_API_KEY as for the tests.
import { base, launch, open, signIn } from '../tests/browser.mjs';

const [latency = 400, rate = 50_000] = process.argv.slice(2).map(Number);
const browser = await launch();

/** In the page: notes when the wanted content is there, with every change of the page. */
function watch(isOverview) {
  const isThere = isOverview
    ? () =>
        /requests a second/.test(document.body?.innerText) &&
        [...document.querySelectorAll('a')].some((link) =>
          /^\d+\+? ?Endpoints$/.test(link.textContent),
        )
    : () => document.querySelector('form input') !== null;
  const observer = new MutationObserver(() => {
    if (!isThere()) return;
    observer.disconnect();
    globalThis.isThereAt = performance.now();
  });
  observer.observe(document, {
    childList: true,
    subtree: true,
    characterData: true,
  });
}

async function measure(name, page, isOverview) {
  await page.addInitScript(watch, isOverview);
  const client = await page.context().newCDPSession(page);
  await client.send('Network.enable');
  await client.send('Network.setCacheDisabled', { cacheDisabled: true });
  await client.send('Network.emulateNetworkConditions', {
    offline: false,
    latency,
    downloadThroughput: rate,
    uploadThroughput: rate,
  });
  await page.goto(`${base}/console/`, { waitUntil: 'commit' });
  const at = await page.waitForFunction(() => globalThis.isThereAt);
  const seconds = (await at.jsonValue()) / 1000;
  console.log(`${name}: ${seconds.toFixed(2)} s`);
}

for (let n = 0; n < 3; n += 1) {
  const { page, context } = await open(browser, { expected: [/./] });
  await measure('sign-in', page, false);
  await context.close();
}
for (let n = 0; n < 3; n += 1) {
  const { page, context } = await open(browser, { expected: [/./] });
  await signIn(page);
  await page.getByText('requests a second', { exact: true }).waitFor();
  await page.goto('about:blank');
  // The frame, the figures and what was read.
  await measure('overview', page, true);
  await context.close();
}
await browser.close();
