// Parts of the console that are loaded later: while the server is away, and after it was upgraded.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { launch, open, settled, signIn } from './browser.mjs';
import { Server, program } from './server.mjs';

let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());

const expected = [
  /ERR_CONNECTION_REFUSED|ERR_INCOMPLETE|ERR_EMPTY|ERR_CONNECTION_RESET/,
  /ERR_ABORTED|status of 404/,
];

/** The first page. The files of forms are not loaded yet. */
async function overview(t) {
  const server = await Server.start();
  t.after(() => server.remove());
  const { page, context } = await open(browser, { at: server.url, expected });
  await signIn(page, '/console/', server.token, server.url);
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  await settled(page);
  /** Opens the panel as its link does. */
  const create = () =>
    page.evaluate(() => {
      history.pushState({}, '', '/console/endpoints/new');
      dispatchEvent(new PopStateEvent('popstate'));
    });
  return { server, page, context, create };
}

test(
  'a panel that is opened while the server restarts opens when it is back',
  { skip: !program },
  async (t) => {
    const { server, page, context, create } = await overview(t);
    const asked = await page.evaluate(
      () =>
        performance
          .getEntriesByType('resource')
          .filter(({ name }) => name.includes('forms.js')).length,
    );
    await server.stop();
    await create();
    await page.getByText('The server does not answer.').first().waitFor();
    await server.start();
    const panel = page.getByRole('dialog', { name: 'Create an endpoint' });
    await panel.getByRole('button', { name: 'Create' }).waitFor();
    assert.equal(asked, 0, 'the panel was not there before');
    await context.close();
  },
);

test(
  'every part is asked for with its build, and another build has none of it',
  { skip: !program },
  async (t) => {
    const { server, page, context } = await overview(t);
    const parts = await page.evaluate(() =>
      performance
        .getEntriesByType('resource')
        .map(({ name }) => new URL(name))
        .filter(({ pathname }) => /\/assets\/.*\.(js|css)$/.test(pathname))
        .map(({ pathname, search }) => [pathname, search]),
    );
    const builds = new Set(parts.map(([, search]) => search));
    if (!process.env.CULVERT_CONSOLE_DIST) {
      assert.equal(builds.size, 1, JSON.stringify(parts));
      assert.match([...builds][0], /^\?v=[0-9a-f]{16}$/);
      const ask = async (search) =>
        (await fetch(`${server.url}/console/assets/forms.js${search}`)).status;
      assert.equal(await ask([...builds][0]), 200);
      assert.equal(await ask(''), 200);
      assert.equal(await ask('?v=0000000000000000'), 404);
    }
    await context.close();
  },
);

test(
  'a tab from before an upgrade says so, at once and where it lacks a part',
  { skip: !program },
  async (t) => {
    const { server, page, context, create } = await overview(t);
    // As from a server with other files: its page names another build, and it has no part of this one.
    await page.route('**/console/', async (route) => {
      const response = await route.fetch();
      const text = await response.text();
      await route.fulfill({
        response,
        body: text.replaceAll(/\?v=\w+/g, '?v=0123456789abcdef'),
      });
    });
    await page.route('**/console/assets/{forms,resources}.js*', (route) =>
      route.fulfill({ status: 404, body: '' }),
    );
    await create();
    await page
      .getByRole('heading', { name: 'This page is of the version before' })
      .waitFor();
    await page.getByText('The server was upgraded, and this page').waitFor();
    await page.unrouteAll();
    await page.getByRole('button', { name: 'Load the page again' }).click();
    const panel = page.getByRole('dialog', { name: 'Create an endpoint' });
    await panel.getByRole('button', { name: 'Create' }).waitFor();
    assert.ok(server);
    await context.close();
  },
);
