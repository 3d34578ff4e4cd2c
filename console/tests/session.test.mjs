import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { after, before, test } from 'node:test';
import {
  api,
  base,
  fromFolder,
  launch,
  open,
  signIn,
  signInByForm,
} from './browser.mjs';

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());

test('a wrong token is refused in words, the right one lets in, and signing out ends it', async () => {
  const { page, context, faults } = await open(browser, {
    expected: [/status of 401/],
  });
  await page.goto(`${base}/console/`);
  await page.getByLabel('Token of an API key').fill('wrong');
  await page.keyboard.press('Enter');
  await page.getByText('The server does not know this token.').waitFor();
  await signInByForm(page);
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  const cookies = await context.cookies();
  assert.ok(
    cookies.every((cookie) => cookie.httpOnly && cookie.sameSite === 'Strict'),
  );
  assert.ok(
    !(
      await page.evaluate(() =>
        JSON.stringify({ ...localStorage, ...sessionStorage }),
      )
    ).includes('ak_'),
  );
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.getByRole('heading', { name: 'Sign in to culvert' }).waitFor();
  assert.equal((await api(page, 'GET', '/api_keys')).status, 401);
  assert.deepEqual(faults, []);
  await context.close();
});

test('a session that ends asks for a token over the page, and goes on there', async () => {
  const { page, context, faults } = await open(browser, {
    expected: [/status of 401/],
  });
  await signInByForm(page, '/console/endpoints/new');
  const panel = page.getByRole('dialog', { name: 'Create an endpoint' });
  await panel
    .getByRole('textbox', { name: 'URL', exact: true })
    .fill('https://kept.example.com');
  await page.evaluate(() =>
    fetch('/console/session', {
      method: 'DELETE',
      headers: { 'x-culvert-console': '1' },
    }),
  );
  // A query of the page may notice the end first, and the panel of the sign-in is over the button then.
  await panel.getByRole('button', { name: 'Create' }).dispatchEvent('click');
  const again = page.getByRole('dialog', { name: 'Sign in again' });
  await again
    .getByLabel('Token of an API key')
    .fill(process.env.CULVERT_API_KEY);
  await page.keyboard.press('Enter');
  await again.waitFor({ state: 'detached' });
  assert.equal(
    await panel.getByRole('textbox', { name: 'URL', exact: true }).inputValue(),
    'https://kept.example.com',
  );
  assert.deepEqual(faults, []);
  await context.close();
});

test('a session that ended while its browser was closed asks for a token on the sign-in page', async () => {
  const { page, context, faults } = await open(browser, {
    expected: [/status of 401/],
  });
  await signInByForm(page);
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  // This browser was signed in, so the console is loaded at the same time as the session is asked for.
  await context.clearCookies();
  await signInByForm(page, '/console/vaults');
  await page.getByRole('heading', { name: 'Vaults', level: 1 }).waitFor();
  assert.deepEqual(faults, []);
  await context.close();
});

test('the sign-in page leads to the provider, says why a sign-in failed there, and copies its commands', async () => {
  const { page, context, faults } = await open(browser, {
    expected: [/status of 401/],
  });
  await context.route('**/sign-in/methods', (route) =>
    route.fulfill({ json: { openid: { name: '<b>Acme</b>' } } }),
  );
  await page.goto(`${base}/console/?refused=647`);
  const way = page.getByRole('link', { name: 'Log in with <b>Acme</b>' });
  assert.equal(await way.getAttribute('href'), '/console/sign-in');
  await page
    .getByRole('alert')
    .getByText('Your user at the provider may not sign in here.')
    .waitFor();
  const token = page.getByLabel('Token of an API key');
  assert.ok(await page.getByRole('button', { name: 'Sign in' }).isDisabled());
  await token.fill('shown');
  await page.getByRole('button', { name: 'Show the token' }).click();
  assert.equal(await token.getAttribute('type'), 'text');
  await page.getByText('Where do I find a token?').click();
  await page.getByRole('button', { name: 'Copy' }).first().click();
  await page.getByRole('button', { name: /Copied|Select the text/ }).waitFor();
  assert.deepEqual(faults, []);
  await context.close();
});

test('a console that does not load says so, and is loaded by the next try', async () => {
  const { page, context } = await open(browser);
  await signIn(page);
  await context.route('**/assets/first.js*', (route) => route.abort());
  await page.goto(`${base}/console/`);
  await page.getByText('The console could not be loaded.').waitFor();
  await context.unroute('**/assets/first.js*');
  await page.reload();
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  await context.close();
});

test('a server that is away is told, and the page goes on by itself', async () => {
  const { page, context } = await open(browser);
  await signIn(page, '/console/api_keys');
  await page.getByRole('link', { name: 'Endpoints' }).waitFor();
  await context.route('**/console/**', (route) =>
    route.abort('connectionrefused'),
  );
  await page.getByRole('link', { name: 'Endpoints' }).click();
  await page.getByText('Trying again every two seconds.').waitFor();
  await context.unroute('**/console/**');
  await page
    .getByText('Trying again every two seconds.')
    .waitFor({ state: 'detached' });
  await page.getByRole('heading', { name: 'Endpoints', level: 1 }).waitFor();
  await context.close();
});

test('a refusal for a lack of rights is told with its code and request', async () => {
  const { page, context } = await open(browser, { expected: [/403/] });
  await signIn(page);
  const body = {
    status_code: 403,
    error_code: 'ERR_NGROK_300',
    msg: "This key is not an admin's.",
    details: { operation_id: 'op_test' },
  };
  await context.route('**/console/api/api_keys?*', (route) =>
    route.fulfill({ status: 403, json: body }),
  );
  await page.goto(`${base}/console/api_keys`);
  await page.getByRole('heading', { name: 'You may not do this' }).waitFor();
  await page.getByText('op_test').waitFor();
  await context.close();
});

test('a store that is away is told on every page, which goes on by itself', async () => {
  const { page, context } = await open(browser, {
    expected: [/status of (401|503)/],
  });
  await signIn(page);
  const body = {
    status_code: 503,
    msg: 'The database is not available.',
    details: { operation_id: 'op_test' },
  };
  // All at once: a page asks twice again before it gives up, and then every five seconds.
  await Promise.all(
    ['/', '/endpoints', '/audit', '/nodes'].map(async (path) => {
      const one = await context.newPage();
      await one.route('**/console/api/**', (route) =>
        route.fulfill({ status: 503, json: body }),
      );
      await one.goto(`${base}/console${path}`);
      await one
        .getByRole('heading', { name: 'The server could not do this' })
        .first()
        .waitFor();
      await one.getByText('The database is not available.').first().waitFor();
      await one.unroute('**/console/api/**');
      await one.getByRole('heading', { level: 1 }).waitFor();
      await one
        .getByText('The database is not available.')
        .first()
        .waitFor({ state: 'detached' });
    }),
  );
  await context.close();
});

test(
  'the demo prints a link that signs in once',
  { skip: !process.env.CULVERT_PROGRAM },
  async () => {
    const demo = spawn(process.env.CULVERT_PROGRAM, ['demo'], {
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    try {
      // Its output is read to the end: the demo ends if nobody reads it.
      const link = await new Promise((resolve, reject) => {
        let said = '';
        demo.stdout.on('data', (piece) => {
          said += piece;
          const found = /(http:\S+\/console\/#sign-in=\S+)\n/.exec(said);
          if (found) resolve(found[1]);
        });
        demo.on('exit', () => reject(new Error(`the demo ended: ${said}`)));
      });
      const context = await browser.newContext();
      await fromFolder(context);
      context.setDefaultTimeout(60_000);
      const page = await context.newPage();
      // A person who has the sign-in page open pastes the link there.
      await page.goto(new URL('/console/', link).href);
      await page.getByLabel('Token of an API key').waitFor();
      await page.goto(link);
      await page.getByRole('heading', { name: 'Overview' }).waitFor();
      assert.ok(!page.url().includes('#'), 'the secret is not in the address');
      await page
        .getByRole('row', { name: /hello\.culvert\.localhost/ })
        .first()
        .waitFor();
      await context.close();
      const other = await (await browser.newContext()).newPage();
      await other.goto(link);
      await other
        .getByText('The sign-in link was used before, or has expired.')
        .waitFor();
      await other.getByLabel('Token of an API key').waitFor();
      await other.context().close();
    } finally {
      demo.kill('SIGINT');
    }
  },
);
