// What a first visit transfers of the console's own files, and how many requests wait for one another, until there is something to read and to do.
// Neither depends on the speed of this machine. scripts/first-load.mjs measures the seconds on a slow line.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { base, launch, open, signIn, until } from './browser.mjs';

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());

/** Waits in the page, so that a slow page is waited for until every request of this round is out. */
const REST = {
  awaitPromise: true,
  expression: `(async () => {
    for (let n = 0; n < 10; n += 1)
      await new Promise((resolve) => setTimeout(resolve, 40));
  })()`,
};

/**
 * Loads the console with an empty cache, and holds every request until all that go out without the answer of another one
 * are there. These are one round trip.
 */
async function load(page, target) {
  const client = await page.context().newCDPSession(page);
  const held = [];
  const sizes = new Map();
  const names = new Map();
  const rounds = [];
  const pending = new Set();
  client.on('Fetch.requestPaused', ({ requestId, networkId, request }) => {
    held.push({ requestId, networkId, path: new URL(request.url).pathname });
  });
  client.on('Network.requestWillBeSent', ({ requestId, request }) =>
    names.set(requestId, new URL(request.url).pathname),
  );
  const grow = (requestId, bytes) =>
    sizes.set(requestId, (sizes.get(requestId) ?? 0) + bytes);
  client.on('Network.responseReceived', ({ requestId, response }) => {
    grow(requestId, response.encodedDataLength);
    // A stream has no end, and nothing reads the body of a session that is not there.
    if (response.mimeType === 'text/event-stream' || response.status === 401)
      pending.delete(requestId);
  });
  client.on('Network.dataReceived', ({ requestId, encodedDataLength }) =>
    grow(requestId, encodedDataLength),
  );
  client.on('Network.loadingFinished', ({ requestId, encodedDataLength }) => {
    sizes.set(requestId, encodedDataLength);
    pending.delete(requestId);
  });
  client.on('Network.loadingFailed', ({ requestId }) =>
    pending.delete(requestId),
  );
  await client.send('Network.enable');
  await client.send('Network.setCacheDisabled', { cacheDisabled: true });
  await client.send('Fetch.enable', { patterns: [{ urlPattern: '*' }] });
  let isThere = false;
  void page.goto(`${base}/console/`, { waitUntil: 'commit' }).then(async () => {
    await target.waitFor();
    isThere = true;
  });
  for (;;) {
    await until(async () => held.length > 0 || isThere, Boolean);
    if (rounds.length > 0) await client.send('Runtime.evaluate', REST);
    // The browser holds what the page asks for by now, and what is there is looked at again: the wait above does so seldom.
    if (isThere || (rounds.length > 0 && (await target.isVisible()))) break;
    const round = held.splice(0);
    rounds.push(round.map(({ path }) => path));
    for (const { networkId } of round) pending.add(networkId);
    await Promise.all(
      round.map(({ requestId }) =>
        client.send('Fetch.continueRequest', { requestId }),
      ),
    );
    await until(
      async () => pending.size,
      (n) => n === 0,
    );
  }
  const largest = [...sizes]
    .map(([id, size]) => [size, names.get(id)])
    // What an installation has of its own is as large as it is.
    .filter(([, path]) => !path.startsWith('/console/api/'))
    .sort(([one], [other]) => other - one);
  const bytes = largest.reduce((sum, [size]) => sum + size, 0);
  return { bytes, rounds, largest };
}

/** Says what was loaded. */
function report(t, { bytes, rounds, largest }) {
  t.diagnostic(`${bytes} bytes, ${rounds.length} round trips`);
  for (const round of rounds) t.diagnostic(round.join(' '));
  for (const [size, path] of largest.slice(0, 8))
    t.diagnostic(`${size} ${path}`);
}

test('the sign-in page needs two round trips and 9 KB', async (t) => {
  const { page, context } = await open(browser);
  const found = await load(page, page.getByLabel('Token of an API key'));
  report(t, found);
  assert.ok(found.rounds.length <= 2, `${found.rounds.length} round trips`);
  assert.ok(found.bytes < 9_000, `${found.bytes} bytes`);
  await context.close();
});

test('the overview needs three round trips and 52 KB', async (t) => {
  const { page, context } = await open(browser);
  await signIn(page);
  const figures = page.getByText('requests a second', { exact: true });
  await figures.waitFor();
  await page.goto('about:blank');
  const found = await load(
    page,
    page
      .locator('body')
      .filter({ has: figures })
      .filter({ has: page.getByRole('link', { name: /^\d+\+? ?Endpoints$/ }) })
      .filter({
        has: page.getByRole('link', { name: 'Domains and certificates' }),
      }),
  );
  report(t, found);
  assert.ok(found.rounds.length <= 3, `${found.rounds.length} round trips`);
  assert.ok(found.bytes < 52_000, `${found.bytes} bytes`);
  await context.close();
});
