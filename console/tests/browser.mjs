// What every test needs: a browser, a page that notes everything that went wrong in it, and the API beside it.
import { existsSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { chromium } from 'playwright-core';

export const base = process.env.CULVERT_CONSOLE_URL ?? 'http://127.0.0.1:5180';
export const token = process.env.CULVERT_API_KEY;
if (!token)
  throw new Error('Set CULVERT_API_KEY to the token of an admin key.');

/** A test fails after this: a busy machine is slow, and a condition that holds is seen as soon as it does. */
const PATIENCE_MS = Number(process.env.PATIENCE_MS ?? 60_000);

/** The first of these that is there: the shell has the same engine without a browser's surface, and needs about half the processor time. */
const BROWSERS = ['/usr/bin/chromium-headless-shell', '/usr/bin/chromium'];

const OPTIONS = {
  executablePath:
    process.env.CHROMIUM ?? BROWSERS.find((path) => existsSync(path)),
  args: [
    '--headless',
    '--no-sandbox',
    '--disable-gpu',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
  ],
};

let started;
let users = 0;

/** The browser of this process, which ends with its last user. Closing it closes the contexts that its user opened. */
export async function launch() {
  users += 1;
  started ??= chromium.launch(OPTIONS);
  const browser = await started;
  const contexts = [];
  return {
    async newContext(options) {
      const context = await browser.newContext(options);
      contexts.push(context);
      return context;
    },
    async close() {
      await Promise.all(contexts.map((context) => context.close()));
      users -= 1;
      if (users > 0) return;
      started = undefined;
      await browser.close();
    },
  };
}

/** With `CULVERT_CONSOLE_DIST`, files of the console come from this folder: a change needs no new server. */
export async function fromFolder(context) {
  const folder = process.env.CULVERT_CONSOLE_DIST;
  if (!folder) return;
  await context.route('**/console/assets/*', (route) =>
    route.fulfill({
      path: join(
        folder,
        'assets',
        basename(new URL(route.request().url()).pathname),
      ),
    }),
  );
  await context.route('**/console/**', async (route) => {
    if (route.request().resourceType() !== 'document') return route.fallback();
    const response = await route.fetch();
    const { cookie = '' } = await route.request().allHeaders();
    const name = /(^|-|; )culvert=/.test(cookie) ? 'signed-in' : 'index';
    return route.fulfill({
      response,
      body: readFileSync(join(folder, `${name}.html`)),
    });
  });
}

/** A page whose `faults` holds console errors, broken policies, failed requests and requests to other hosts. */
export async function open(
  browser,
  {
    width = 1440,
    height = 900,
    scheme = 'light',
    expected = [],
    at = base,
    ignoreHTTPSErrors = false,
  } = {},
) {
  const context = await browser.newContext({
    viewport: { width, height },
    colorScheme: scheme,
    reducedMotion: 'reduce',
    ignoreHTTPSErrors,
  });
  context.setDefaultTimeout(PATIENCE_MS);
  await fromFolder(context);
  const page = await context.newPage();
  const faults = [];
  const note = (text) => {
    if (!expected.some((pattern) => pattern.test(text)))
      faults.push(`${page.url()}: ${text}`);
  };
  await page.addInitScript(() => {
    globalThis.violations = [];
    addEventListener('securitypolicyviolation', (event) => {
      console.error(
        `policy: ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`,
      );
    });
  });
  page.on(
    'console',
    (message) =>
      message.type() === 'error' &&
      note(`console: ${message.text()} ${message.location().url}`),
  );
  page.on('pageerror', (error) => note(`uncaught: ${error.stack}`));
  page.on('requestfailed', (request) => {
    const why = request.failure()?.errorText;
    if (why !== 'net::ERR_ABORTED') note(`failed: ${request.url()} ${why}`);
  });
  page.on('request', (request) => {
    if (
      new URL(request.url()).origin !== new URL(at).origin &&
      !request.url().startsWith('data:')
    )
      note(`elsewhere: ${request.url()}`);
  });
  return { page, context, faults };
}

const MAIN = 'main#main';

/** Opens a path with a session of its own, without the page that asks for a token. */
export async function signIn(page, path = '/console/', key, at = base) {
  const headers = { origin: new URL(at).origin, 'x-culvert-console': '1' };
  const data = { token: key ?? (await nextKey(page)) };
  const url = `${at}/console/session`;
  for (;;) {
    const answer = await page.request.post(url, { headers, data });
    if (answer.ok()) break;
    if (answer.status() !== 429)
      throw new Error(`${answer.status()}: ${await answer.text()}`);
    // An owner may sign in so often; all files together sign in more often.
    await page.waitForTimeout(1000 * Number(answer.headers()['retry-after']));
  }
  await page.goto(at + path);
  await page.locator(MAIN).waitFor();
}

/** A key has ten sessions; another one would end the oldest, which another file may still use. */
const SIGN_INS_OF_A_KEY = 8;
let current = { key: token, signIns: 0 };

async function nextKey(page) {
  if (current.signIns >= SIGN_INS_OF_A_KEY) {
    const made = await page.request.post(
      `${process.env.CULVERT_API_URL}/api_keys`,
      {
        headers: { authorization: `Bearer ${token}`, 'ngrok-version': '2' },
        data: { description: 'another key of the tests' },
      },
    );
    if (!made.ok()) throw new Error(`${made.status()}: ${await made.text()}`);
    current = { key: (await made.json()).token, signIns: 0 };
  }
  current.signIns += 1;
  return current.key;
}

/** Opens a path, and signs in there as a person does. */
export async function signInByForm(
  page,
  path = '/console/',
  key = token,
  at = base,
) {
  await page.goto(at + path);
  await page.getByLabel('Token of an API key').fill(key);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.locator(MAIN).waitFor();
}

/**
 * Opens a path as a link does, in a page that is signed in. A load costs half a second of processor time; `signIn` is one,
 * and the crawl loads every path. Nothing of the page before is left, so a test finds only what is of its own page.
 */
export async function go(page, path) {
  const to = (one) =>
    page.evaluate((url) => {
      history.pushState({}, '', url);
      dispatchEvent(new PopStateEvent('popstate'));
    }, `/console${one}`);
  await to('/no/page/is/here');
  await page.locator('h1', { hasText: 'Not found' }).waitFor();
  await to(path);
}

/** A call of the management API in the page's session. */
export function api(page, method, path, body) {
  return page.evaluate(
    async ([verb, at, content]) => {
      const response = await fetch(`/console/api${at}`, {
        method: verb,
        headers: {
          'x-culvert-console': '1',
          ...(content ? { 'content-type': 'application/json' } : {}),
        },
        ...(content ? { body: JSON.stringify(content) } : {}),
      });
      return {
        status: response.status,
        body: response.status === 204 ? null : await response.json(),
      };
    },
    [method, path, body],
  );
}

/** Asks until the answer holds, and returns it. The pause between two questions leaves the processor to the server. */
export async function until(ask, holds) {
  const end = performance.now() + PATIENCE_MS;
  for (;;) {
    const answer = await ask();
    if (holds(answer)) return answer;
    if (performance.now() > end)
      throw new Error(`it does not hold: ${JSON.stringify(answer)}`);
    await setTimeout(50);
  }
}

/** Waits until the page has nothing left to load. The live stream never ends, so the network is not asked. */
export async function settled(page) {
  await page
    .locator('[role="status"][aria-label^="Loading"]')
    .first()
    .waitFor({ state: 'detached', timeout: 15_000 });
  await page.waitForTimeout(150);
}
