// The audit log is verified in the browser: intact, changed, with a gap, cut off; and exported.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { launch, open, signIn } from './browser.mjs';
import { culvert, program, run, Server } from './server.mjs';

const N_VAULTS = 120;
// They are made some seconds after the start, and the log must not grow while it is compared.
const WITHOUT_RULES = ['--alerts-defaults', 'false'];
let browser, server;
before(async () => {
  browser = await launch();
  if (!program) return;
  server = await Server.start(WITHOUT_RULES);
  for (let n = 0; n < N_VAULTS; n += 1)
    await server.make('vaults', {
      name: `proof-${n}`,
      description: `"quotes", \\ and ü ☂ ${n}`,
    });
});
after(async () => {
  await browser.close();
  await server?.remove();
});

/** Writes to the database of a server that is stopped meanwhile. */
async function tamper(one, sql) {
  await one.stop();
  await run('sqlite3', [`${one.folder}/data/state.db`, sql]);
  await one.start();
}

const PATH = '/console/audit';
const expected = { expected: [/status of 40[0-9]/, /ERR_/] };

test(
  'an intact log is proved, exported, and changes are found where they are',
  { skip: !program },
  async (t) => {
    const { page, context, faults } = await open(browser, {
      ...expected,
      at: server.url,
    });
    await signIn(page, PATH, server.token, server.url);
    const section = page.locator('section').filter({
      has: page.getByRole('heading', { name: 'Proof of completeness' }),
    });
    const verify = () =>
      section.getByRole('button', { name: 'Verify', exact: true }).click();

    await verify();
    await section.getByText('The audit log is intact.').waitFor();
    const head = (await section.locator('code').last().innerText()).trim();
    assert.match(head, /^\d+:[0-9a-f]{64}$/);
    // The program beside the server says the same.
    const said = await culvert(
      'audit',
      'verify',
      '--data-dir',
      `${server.folder}/data`,
      '--head',
      head,
    );
    assert.match(said, /intact/);
    assert.ok(said.includes(head.slice(0, 20)), said);

    // The export is one that `culvert audit export` could have written.
    const downloading = page.waitForEvent('download');
    await section.getByRole('button', { name: 'Verify and export' }).click();
    const file = `${server.folder}/audit.jsonl`;
    await (await downloading).saveAs(file);
    const exported = readFileSync(file, 'utf8');
    // Reading the log may have left an event since.
    const now = await culvert(
      'audit',
      'export',
      '--data-dir',
      `${server.folder}/data`,
    );
    assert.equal(exported, now.slice(0, exported.length));
    const later = now.slice(exported.length).split('\n').filter(Boolean);
    for (const line of later)
      assert.equal(JSON.parse(line).event.event_type, 'events_exported.v0');
    assert.ok(exported.split('\n').length > N_VAULTS);

    // A wrong head is refused at its field; that of another log is a broken log.
    await section.getByText('Compare with a recorded head').click();
    await section.getByLabel('Recorded head').fill('12:zz');
    await section
      .getByText('A head is a position, a colon, and 64 hexadecimal digits.')
      .waitFor();
    await section
      .getByLabel('Recorded head')
      .fill(`7:${createHash('sha256').update('other').digest('hex')}`);
    await verify();
    await section
      .getByRole('alert')
      .getByText('Position 7 does not have the recorded hash')
      .waitFor();
    await section.getByLabel('Recorded head').fill('');

    // Someone with access to the database changes an event.
    await tamper(
      server,
      "update outbox set body = replace(body, 'proof-50', 'proof-5O') where body like '%\"proof-50\"%'",
    );
    await page.reload();
    await verify();
    await section
      .getByRole('heading', { name: 'The audit log is broken' })
      .waitFor();
    await section
      .getByText(/was changed: its hash is not that of its content/)
      .waitFor();
    await tamper(
      server,
      "update outbox set body = replace(body, 'proof-5O', 'proof-50') where body like '%\"proof-5O\"%'",
    );
    await page.reload();
    await verify();
    await section.getByText('The audit log is intact.').waitFor();

    // Deletes one.
    const [seq] = (
      await run('sqlite3', [
        `${server.folder}/data/state.db`,
        'select seq from outbox where body like \'%"proof-60"%\'',
      ])
    )
      .trim()
      .split('\n');
    await tamper(server, `delete from outbox where seq = ${seq}`);
    await page.reload();
    await verify();
    await section.getByText(`Position ${seq} is missing.`).waitFor();
    t.diagnostic(`position ${seq}`);
    assert.deepEqual(faults, []);
    await context.close();
  },
);

test(
  'a browser that verified a log notices that its end was removed',
  { skip: !program },
  async (t) => {
    const own = await Server.start(WITHOUT_RULES);
    t.after(() => own.remove());
    for (let n = 0; n < 5; n += 1)
      await own.make('vaults', { name: `cut-${n}` });
    const { page, context } = await open(browser, { ...expected, at: own.url });
    await signIn(page, PATH, own.token, own.url);
    const section = page.locator('section').filter({
      has: page.getByRole('heading', { name: 'Proof of completeness' }),
    });
    await section.getByRole('button', { name: 'Verify', exact: true }).click();
    await section.getByText('The audit log is intact.').waitFor();
    // Someone with access to the database removes the last events, and makes the rest look whole.
    await tamper(
      own,
      'delete from outbox where seq > 4; update ledger set outbox = 4, chained = 4, head = (select hash from outbox where seq = 4)',
    );
    await page.reload();
    await section.getByRole('button', { name: 'Verify', exact: true }).click();
    await section
      .getByRole('alert')
      .getByText(
        /The log ends at position \d+: the recorded position \d+ is gone/,
      )
      .waitFor();
    await context.close();
  },
);

test(
  'a member is told what only an admin can prove',
  { skip: !program },
  async (t) => {
    const own = await Server.start(WITHOUT_RULES);
    t.after(() => own.remove());
    await own.make('vaults', { name: 'readable' });
    const bot = await own.make('bot_users', { name: 'member' });
    const key = await own.make('api_keys', { owner_id: bot.id });
    await own.make('vaults', { name: 'readable-too' });
    const { page, context, faults } = await open(browser, {
      ...expected,
      at: own.url,
    });
    await signIn(page, PATH, key.token, own.url);
    await page.getByRole('button', { name: 'Verify', exact: true }).click();
    await page.getByText('What you may read is intact.').waitFor();
    await page
      .getByText(
        /such as those about keys, sign-ins and policies, are visible to admins only/,
      )
      .waitFor();
    assert.deepEqual(faults, []);
    await context.close();
  },
);
