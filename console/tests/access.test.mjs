// People, roles and keys: what each role is offered, and the main tasks of the Access pages.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import {
  api,
  base,
  go,
  launch,
  open,
  settled,
  signIn,
  until,
} from './browser.mjs';

const run = `${Date.now() % 1_000_000}`;
let browser;
before(async () => {
  browser = await launch();
});
after(() => browser.close());

/** Invites a person as an admin, accepts as the person. Answers with the token of the person's key. */
async function invited(admin, email, role) {
  await go(admin, '/users/new');
  const panel = admin.getByRole('dialog', { name: 'Create a user' });
  await panel.getByRole('textbox', { name: 'Email' }).fill(email);
  await panel
    .getByRole('combobox', { name: 'Role' })
    .or(panel.getByRole('textbox', { name: 'Role' }))
    .click();
  await admin.getByRole('option', { name: role, exact: true }).click();
  await panel.getByRole('button', { name: 'Create' }).click();
  const link = await panel.getByRole('status').locator('pre').innerText();
  assert.match(link, /\/console\/invitation#/);
  const { page, context, faults } = await open(browser, {
    expected: [/status of 401/],
  });
  await page.goto(link);
  await page
    .getByRole('heading', { name: 'You are invited to culvert' })
    .waitFor();
  assert.ok(!page.url().includes('#'), 'the token is not in the address');
  // The tab keeps it, and the page says who invites whom, and as what.
  await page.reload();
  const words = { member: 'Member', read_only: 'Read-only' };
  await page
    .getByText(`invites ${email} with the role ${words[role]}`)
    .waitFor();
  await page.getByRole('button', { name: 'Accept the invitation' }).click();
  await page.getByRole('heading', { name: `Welcome, ${email}` }).waitFor();
  const token = await page.getByRole('status').locator('pre').innerText();
  await page.getByRole('link', { name: 'I have copied it' }).click();
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
  assert.deepEqual(faults, []);
  // It works once, and in a tab that shows another one too.
  await page.goto(`${base}/console/invitation`);
  await page.getByText('This link has no invitation').waitFor();
  await page.evaluate((used) => {
    location.hash = used;
  }, new URL(link).hash);
  await page.getByText('The invitation is invalid or has expired.').waitFor();
  await page.reload();
  await page.getByText('This link has no invitation').waitFor();
  await context.close();
  return token;
}

test('people come in by invitation, and each role is offered what it may do', async () => {
  const admin = await open(browser, { expected: [/status of 401/] });
  await signIn(admin.page);
  await admin.page.getByText('Admin', { exact: true }).waitFor();
  const member = await invited(admin.page, `member${run}@x.example`, 'member');
  const reader = await invited(
    admin.page,
    `reader${run}@x.example`,
    'read_only',
  );
  await go(admin.page, '/users');
  await admin.page.getByText(`member${run}@x.example`).waitFor();

  for (const [token, may] of [
    [
      member,
      { api_keys: true, endpoints: true, users: false, bot_users: false },
    ],
    [
      reader,
      { api_keys: false, endpoints: false, users: false, bot_users: false },
    ],
  ]) {
    const { page, context, faults } = await open(browser, {
      expected: [/status of 401/],
    });
    await signIn(page, '/console/', token);
    for (const [collection, create] of Object.entries(may)) {
      await go(page, `/${collection}`);
      await page.locator('h1').filter({ hasNotText: 'Not found' }).waitFor();
      await settled(page);
      assert.equal(
        (await page.getByRole('link', { name: /^Create an? / }).count()) > 0,
        create,
        collection,
      );
    }
    await go(page, '/users');
    await page
      .getByRole('link', { name: `member${run}@x.example` })
      .first()
      .click();
    await page
      .getByRole('heading', { name: `member${run}@x.example`, level: 1 })
      .waitFor();
    await settled(page);
    for (const name of ['Edit', 'Delete', 'Invite'])
      assert.equal(
        await page
          .getByRole('button', { name })
          .or(page.getByRole('link', { name, exact: true }))
          .count(),
        0,
        name,
      );
    assert.equal(
      (await api(page, 'POST', '/users', { email: 'x@x.example' })).status,
      403,
    );
    assert.deepEqual(
      faults.filter((fault) => !/status of 40[13]/.test(fault)),
      [],
    );
    await context.close();
  }

  // A person who is removed is out at once.
  const out = await open(browser, { expected: [/status of 401/] });
  await signIn(out.page, '/console/', reader);
  const { body } = await api(admin.page, 'GET', '/users');
  const gone = body.users.find(
    (user) => user.email === `reader${run}@x.example`,
  );
  assert.equal(
    (await api(admin.page, 'DELETE', `/users/${gone.id}`)).status,
    204,
  );
  assert.equal((await api(out.page, 'GET', '/self')).status, 401);
  assert.deepEqual(admin.faults, []);
  await out.context.close();
  await admin.context.close();
});

test('a key is restricted and rotated, and shows its last use', async () => {
  const { page, context, faults } = await open(browser, {
    expected: [/status of 401/],
  });
  await signIn(page);
  const { body: key } = await api(page, 'POST', '/api_keys', {
    description: `restricted ${run}`,
  });
  await go(page, `/api_keys/${key.id}`);
  await page.getByRole('heading', { name: 'Restrictions and use' }).waitFor();
  await page.getByRole('link', { name: 'Change restrictions' }).click();
  const panel = page.getByRole('dialog', { name: 'Update restrictions' });
  await panel
    .getByRole('combobox', { name: 'Scopes' })
    .or(panel.getByRole('textbox', { name: 'Scopes' }))
    .fill('secrets.read');
  await page.getByRole('option', { name: 'secrets.read' }).click();
  await panel
    .getByRole('combobox', { name: 'Networks' })
    .or(panel.getByRole('textbox', { name: 'Networks' }))
    .fill('127.0.0.0/8');
  await page.keyboard.press('Enter');
  await panel.getByRole('button', { name: 'Update restrictions' }).click();
  await panel.waitFor({ state: 'detached' });
  await page.getByText('secrets.read').waitFor();
  await page.getByText('127.0.0.0/8').waitFor();

  // It may do only that, here and in the API.
  const other = await open(browser, { expected: [/status of 40[13]/] });
  await signIn(other.page, '/console/vaults', key.token);
  await other.page.getByRole('heading', { name: 'Vaults', level: 1 }).waitFor();
  assert.equal((await api(other.page, 'GET', '/endpoints')).status, 403);
  assert.equal(
    await other.page.getByRole('link', { name: /^Create an? / }).count(),
    0,
  );
  await other.context.close();

  await page.reload();
  await page.getByText('127.0.0.1', { exact: true }).waitFor();
  await page.getByRole('link', { name: 'Rotate' }).click();
  const rotate = page.getByRole('dialog', { name: 'Rotate' });
  await rotate.getByRole('textbox', { name: /^Overlap$/ }).fill('3600');
  await rotate.getByRole('button', { name: 'Rotate' }).click();
  const token = await rotate.getByRole('status').locator('pre').innerText();
  assert.notEqual(token, key.token);
  await rotate.getByRole('button', { name: 'I have copied it' }).click();
  const end = page.getByText('Token before the rotation works until');
  await end.waitFor();
  // Who still uses the token before, and how often the key was used for what.
  await page.getByText('Token before the rotation last used').waitFor();
  await page.getByText('New token last used').waitFor();
  const calls = page.getByLabel('Calls by operation');
  await page.getByRole('heading', { name: 'Calls in 30 days' }).waitFor();
  await until(
    () => api(page, 'GET', `/statistics?subject=key&id=${key.id}`),
    ({ body }) => body.total.calls.by_operation.endpoints_list >= 1,
  );
  await page.reload();
  await calls.getByText('endpoints_list').waitFor();
  await page.getByRole('button', { name: 'End the overlap' }).click();
  await page
    .getByRole('dialog', { name: 'End the overlap' })
    .getByRole('button', { name: 'End the overlap' })
    .click();
  await end.waitFor({ state: 'detached' });
  assert.deepEqual(faults, []);
  await context.close();
});

test('a key is created with its restrictions in one form', async () => {
  const { page, context, faults } = await open(browser, {
    expected: [/status of 40[13]/],
  });
  await signIn(page);
  await go(page, '/api_keys/new');
  const panel = page.getByRole('dialog', { name: 'Create an API key' });
  const field = (name) =>
    panel
      .getByRole('combobox', { name })
      .or(panel.getByRole('textbox', { name, exact: true }));
  await field('Description').fill(`ci ${run}`);
  await field('Made for').click();
  await page.getByRole('option', { name: /^CI/ }).click();
  const scope = (name) =>
    panel.getByRole('checkbox', { name, exact: true, includeHidden: true });
  assert.ok(await scope('endpoints.write').isChecked());
  await panel.getByText('Create, change and delete vaults').waitFor();
  const end = await panel.getByLabel('Expires').inputValue();
  assert.match(end, /^\d{4}-\d\d-\d\d$/);
  await scope('domains.read').check();
  await panel.getByRole('button', { name: 'What could it do?' }).click();
  await panel
    .getByRole('status')
    .getByText(/for \d+ operations/)
    .waitFor();
  await panel.getByText('Operations', { exact: true }).click();
  await panel.getByText('reserved_domains_list', { exact: true }).waitFor();
  await panel.getByRole('button', { name: 'Create', exact: true }).click();
  const token = await panel.getByRole('status').locator('pre').innerText();
  await panel.getByRole('button', { name: 'I have copied it' }).click();
  await page.getByRole('heading', { name: `ci ${run}`, level: 1 }).waitFor();
  await page.getByText('domains.read', { exact: true }).waitFor();

  const other = await open(browser, { expected: [/status of 40[13]/] });
  await signIn(other.page, '/console/', token);
  assert.equal((await api(other.page, 'GET', '/vaults')).status, 403);
  assert.equal((await api(other.page, 'GET', '/endpoints')).status, 200);
  const self = await api(other.page, 'GET', '/self');
  assert.equal(self.body.expires_at, `${end}T00:00:00Z`);
  await other.context.close();

  // Another preset replaces the restrictions, and a mistake is told at its field.
  await go(page, '/api_keys/new');
  await field('Made for').click();
  await page.getByRole('option', { name: 'Read only' }).click();
  await field('Networks').fill('nowhere');
  await page.keyboard.press('Enter');
  await panel.getByRole('button', { name: 'Create', exact: true }).click();
  await panel
    .getByText(/`networks\[0\]` is invalid/)
    .first()
    .waitFor();
  assert.ok(!(await scope('endpoints.write').isChecked()));
  assert.deepEqual(
    faults.filter((fault) => !/status of 400/.test(fault)),
    [],
  );
  await context.close();
});

test('an invitation that is not valid is refused in words', async () => {
  const { page, context } = await open(browser, {
    expected: [/status of 401/],
  });
  await page.goto(`${base}/console/invitation#nothing`);
  await page.getByText('The invitation is invalid or has expired.').waitFor();
  await context.close();
});

test('an IP policy shows its rules, and the form of an IP restriction its policies', async () => {
  const { page, context, faults } = await open(browser);
  await signIn(page);
  const make = async (collection, body) => {
    const made = await api(page, 'POST', `/${collection}`, body);
    assert.equal(made.status, 201, made.body.msg);
    return made.body;
  };
  const policy = await make('ip_policies', { description: `office ${run}` });
  await go(page, `/ip_policies/${policy.id}`);
  await page
    .getByText('Without an allow rule, this policy allows no address.')
    .waitFor();
  const other = await make('ip_policies', { description: `other ${run}` });
  await make('ip_policy_rules', {
    ip_policy_id: policy.id,
    cidr: '198.51.100.0/24',
    action: 'allow',
  });
  await make('ip_policy_rules', {
    ip_policy_id: other.id,
    cidr: '203.0.113.0/24',
    action: 'allow',
  });
  await go(page, `/ip_policies/${other.id}`);
  await page.getByRole('link', { name: '203.0.113.0/24' }).waitFor();
  assert.equal(
    await page.getByRole('link', { name: '198.51.100.0/24' }).count(),
    0,
  );
  const restriction = await make('ip_restrictions', {
    type: 'dashboard',
    ip_policy_ids: [policy.id],
  });
  await go(page, `/ip_restrictions/${restriction.id}/edit`);
  await page
    .getByRole('dialog')
    .getByText(`office ${run} (${policy.id})`)
    .waitFor();
  assert.equal(
    (await api(page, 'DELETE', `/ip_restrictions/${restriction.id}`)).status,
    204,
  );
  assert.deepEqual(faults, []);
  await context.close();
});
