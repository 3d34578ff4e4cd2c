// What is offered works, and what is not says why: an agent's endpoint, roles, what is in use, lock-outs; the checks of a
// domain, and the way back to a version.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { after, before, test } from 'node:test';
import { api, go, launch, open, settled, signIn, until } from './browser.mjs';
import { Server, program } from './server.mjs';

const run = `${Date.now() % 1_000_000}`;
let browser, context, faults, page;
before(async () => {
  browser = await launch();
  // The refusals of a lock-out, and of what is in use.
  ({ page, context, faults } = await open(browser, {
    expected: [/status of 4(00|03|09)/],
  }));
  await signIn(page);
});
after(() => browser.close());

const make = async (collection, body, as = page) => {
  const made = await api(as, 'POST', `/${collection}`, body);
  assert.equal(made.status, 201, JSON.stringify(made.body));
  return made.body;
};
const offered = (name) =>
  page
    .getByRole('button', { name, exact: true })
    .or(page.getByRole('link', { name, exact: true }));

test(
  "an agent's endpoint is not edited or deleted here, and says so",
  { skip: !program },
  async (t) => {
    const { token } = await make('credentials', { description: run });
    const agent = spawn(
      program,
      [
        'http',
        '9',
        '--inspect=false',
        '--url',
        `http://agent${run}.culvert.localhost`,
      ],
      {
        env: {
          PATH: process.env.PATH,
          CULVERT_AUTHTOKEN: token,
          CULVERT_SERVER: process.env.CULVERT_AGENTS,
          CULVERT_CA_FILE: process.env.CULVERT_CA,
        },
        stdio: 'ignore',
      },
    );
    t.after(() => agent.kill());
    const found = await until(
      async () =>
        (await api(page, 'GET', '/endpoints')).body.endpoints.find((one) =>
          one.public_url.includes(`agent${run}.`),
        ),
      Boolean,
    );
    await go(page, `/endpoints/${found.id}`);
    await page.getByText('stop the agent to end it').waitFor();
    await settled(page);
    assert.equal(await offered('History').count(), 1);
    for (const name of ['Edit', 'Delete'])
      assert.equal(await offered(name).count(), 0, name);
    await go(page, `/endpoints/${found.id}/edit`);
    await page
      .getByRole('dialog')
      .getByText('stop the agent to end it')
      .waitFor();
    await page.getByRole('button', { name: 'Close' }).last().click();

    await go(page, `/tunnel_sessions/${found.tunnel_session.id}`);
    await page.getByText('An agent is updated on its machine').waitFor();
    assert.equal(await offered('Stop').count(), 1);
    assert.equal(await offered('Restart').count(), 1);
    assert.equal(await offered('Update').count(), 0);
  },
);

test('a form that a role may not send says so', async () => {
  const { token } = await make('api_keys', {
    description: `reads ${run}`,
    role: 'read_only',
  });
  const other = await open(browser, { expected: [/status of 403/] });
  await signIn(other.page, '/console/', token);
  await go(other.page, '/endpoints/new');
  const dialog = other.page.getByRole('dialog', { name: 'Create an endpoint' });
  await dialog.getByText('Your role may not do this.').waitFor();
  assert.equal(await dialog.getByRole('textbox').count(), 0);
  assert.deepEqual(other.faults, []);
  await other.context.close();
});

test('a deletion names what refers to the object, and waits for it', async () => {
  const policy = await make('ip_policies', { description: `used ${run}` });
  const restriction = await make('ip_restrictions', {
    type: 'dashboard',
    description: `by ${run}`,
    ip_policy_ids: [policy.id],
  });
  await go(page, `/ip_policies/${policy.id}`);
  await offered('Delete').click();
  const dialog = page.getByRole('dialog', { name: 'Delete this IP policy?' });
  await dialog.getByRole('link', { name: restriction.id }).waitFor();
  await dialog.getByText('It cannot be deleted while it is in use.').waitFor();
  const button = dialog.getByRole('button', { name: 'Delete' });
  assert.ok(await button.isDisabled());
  await api(page, 'DELETE', `/ip_restrictions/${restriction.id}`);
  // The question is open, and sees the change.
  await dialog
    .getByText('It cannot be deleted while it is in use.')
    .waitFor({ state: 'detached' });
  await button.click();
  await page.getByRole('heading', { name: 'IP policies', level: 1 }).waitFor();
});

test(
  'a change that locks out is refused until it is made nevertheless',
  { skip: !program },
  async (t) => {
    const server = await Server.start();
    t.after(() => server.remove());
    const { body: self } = await server.call('GET', '/self');
    const own = await open(browser, {
      at: server.url,
      expected: [/status of 4/],
    });
    await signIn(own.page, '/console/', server.token, server.url);
    await go(own.page, `/api_keys/${self.api_key.id}`);
    await own.page.getByRole('button', { name: 'Delete', exact: true }).click();
    const dialog = own.page.getByRole('dialog', {
      name: 'Delete this API key?',
    });
    const name = dialog.getByLabel(/^Type .* to confirm$/);
    const [, typed] = /^Type (.*) to confirm$/.exec(
      await dialog.locator('label').first().innerText(),
    );
    await name.fill(typed);
    assert.equal(await dialog.getByRole('checkbox').count(), 0);
    await dialog.getByRole('button', { name: 'Delete' }).click();
    await dialog.getByText(/no admin would have an API key/).waitFor();
    await dialog.getByText('culvert admin create-key').waitFor();
    await dialog
      .getByRole('checkbox', { name: /Make the change nevertheless/ })
      .check();
    await dialog.getByRole('button', { name: 'Delete' }).click();
    await until(
      async () => (await server.call('GET', '/self')).status,
      (status) => status === 401,
    );
    await own.context.close();
  },
);

test('the checks of a domain show what was seen', async () => {
  const domain = await make('reserved_domains', {
    domain: `check${run}.invalid`,
  });
  await go(page, `/reserved_domains/${domain.id}`);
  await page.getByRole('button', { name: 'Check', exact: true }).click();
  const results = page.getByRole('list', { name: 'Results' });
  const name = results.getByRole('listitem').filter({
    hasText: 'The name leads here',
  });
  await name.getByText(/does not resolve/).waitFor();
  await name.getByText(domain.cname_target).first().waitFor();
  await results.getByText('acme.directory_url').first().waitFor();
  await page.getByText(/^Checked by /).waitFor();
  await page.getByRole('button', { name: 'Check again' }).waitFor();
  await api(page, 'DELETE', `/reserved_domains/${domain.id}`);
});

test('a version of an object is restored from its history', async () => {
  const vault = await make('vaults', {
    name: `back-${run}`,
    description: 'first words',
  });
  await api(page, 'PATCH', `/vaults/${vault.id}`, {
    description: 'second words',
  });
  await go(page, `/vaults/${vault.id}`);
  await page.getByRole('link', { name: 'History' }).click();
  await page.getByRole('option', { name: /Vault created/ }).click();
  await page.getByRole('button', { name: 'Restore this version' }).click();
  const dialog = page.getByRole('dialog', { name: 'Restore this version?' });
  await dialog.getByText(/Description/).waitFor();
  await dialog.getByRole('button', { name: 'Restore' }).click();
  await until(
    async () =>
      (await api(page, 'GET', `/vaults/${vault.id}`)).body.description,
    (text) => text === 'first words',
  );
});

test('none of this left an error in the console', async () => {
  assert.deepEqual(faults, []);
  await context.close();
});
