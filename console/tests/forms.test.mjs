// Forms that are drawn from the API's document: fields that belong to a kind, and times.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { api, go, launch, open, signIn, until } from './browser.mjs';

let browser, page, faults;
before(async () => {
  browser = await launch();
  ({ page, faults } = await open(browser));
  await signIn(page);
});
after(() => browser.close());

const field = (name) => page.getByRole('textbox', { name, exact: true });
/** The object that the form of the page has made, once the page shows it: it goes there by itself. */
const created = async (collection, description) => {
  const made = await until(
    async () => {
      const { body } = await api(page, 'GET', `/${collection}`);
      return body[collection].find((one) => one.description === description);
    },
    (one) => one !== undefined,
  );
  await page.waitForURL((url) =>
    url.pathname.endsWith(`/${collection}/${made.id}`),
  );
  return made;
};

test('a condition has the fields of its kind alone', async () => {
  const choose = async (kind) => {
    await page.getByRole('combobox', { name: 'Type' }).click();
    await page.getByRole('option', { name: kind, exact: true }).click();
  };
  const description = `kinds ${Date.now()}`;
  await go(page, '/alert_rules/new');
  await page.getByRole('combobox', { name: 'Type' }).waitFor();
  assert.equal(await field('Above ms').count(), 0);
  await choose('latency');
  await field('Above ms').fill('1500');
  await field('Over').fill('5m');
  await field('Quantile').fill('p99');
  assert.equal(await field('Within').count(), 0);
  // What the next kind does not take is gone, and what both take stays.
  await choose('error_rate');
  assert.equal(await field('Above ms').count(), 0);
  assert.equal(await field('Over').inputValue(), '5m');
  await field('Above').fill('0.5');
  await field('Name').fill('Half of the requests fail');
  await field('Description').fill(description);
  await page.getByRole('button', { name: 'Create', exact: true }).click();
  const { condition } = await created('alert_rules', description);
  assert.deepEqual(
    { type: condition.type, above: condition.above, over: condition.over },
    { type: 'error_rate', above: 0.5, over: '5m' },
  );
});

test('a form begins in its first field, also in an editor, and says what is needed', async () => {
  await go(page, '/audit_holds/new');
  const editor = page.getByRole('dialog').getByRole('textbox', {
    name: 'Filter',
  });
  await editor.waitFor();
  await until(
    () =>
      page.evaluate(() =>
        document.activeElement?.shadowRoot?.activeElement?.getAttribute(
          'aria-label',
        ),
      ),
    (label) => label === 'Filter',
  );
  await page.getByRole('dialog').getByText('Filter *').waitFor();
  await page.keyboard.type('event_id == ');
  await until(
    () => editor.innerText(),
    (text) => text.includes('event_id =='),
  );
  await go(page, '/event_subscriptions/new');
  const add = page.getByRole('button', { name: 'Add source' });
  await add.click();
  await add.click();
  await page.getByRole('button', { name: 'Remove source 1' }).click();
  await until(
    () => page.getByRole('group', { name: /^Sources \d/ }).count(),
    (count) => count === 1,
  );
});

test('a time is chosen in the time zone of the person', async () => {
  const { body: bot } = await api(page, 'POST', '/bot_users', {
    name: `times${Date.now()}`,
  });
  const { body: vault } = await api(page, 'POST', '/vaults', {
    name: `times${Date.now()}`,
  });
  const description = `times ${Date.now()}`;
  const end = '2099-03-04T05:06:07';
  await go(page, '/grants/new');
  await field('Grantee').fill(bot.id);
  await field('Object ID').fill(vault.id);
  await field('Description').fill(description);
  await page.locator('input[type="datetime-local"]').fill(end);
  await page.getByRole('button', { name: 'Create', exact: true }).click();
  const { id, expires_at: kept } = await created('grants', description);
  const wanted = await page.evaluate((text) => new Date(text).getTime(), end);
  assert.equal(Date.parse(kept), wanted);
  await go(page, `/grants/${id}/edit`);
  assert.equal(
    await page.locator('input[type="datetime-local"]').inputValue(),
    end,
  );
  assert.deepEqual(faults, []);
});
