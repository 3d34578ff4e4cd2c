// A policy is written in the console: templates, problems while typing, completion and descriptions, a dry run beside it,
// the difference before it is saved, and secrets that are hidden until they are asked for.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { api, go, launch, open, signIn, until } from './browser.mjs';
import { upstream, visit } from './upstream.mjs';

const run = Date.now() % 1_000_000;
let browser, page, faults, service;
before(async () => {
  browser = await launch();
  service = await upstream();
  ({ page, faults } = await open(browser));
  await signIn(page);
});
after(async () => {
  await browser.close();
  service.server.close();
});

const editor = () =>
  page.getByRole('textbox', { name: 'Traffic policy', exact: true });
const problems = () =>
  page.getByRole('list', { name: 'Problems of the policy' });
const button = (name) => page.getByRole('button', { name, exact: true });
/** Replaces the text as a person does. Chromium would mark up what it replaces by itself, which the page's policy refuses. */
async function write(text) {
  await editor().click();
  await page.keyboard.press('Control+A');
  await page.keyboard.press('Delete');
  await editor().fill(text);
}
const SECRET = 'a long password';
const POLICY = `# Kept.\non_http_request:\n  - actions:\n      - type: basic-auth\n        config:\n          credentials: ["anna:${SECRET}"]\n`;

async function made(name, policy) {
  const { body } = await api(page, 'POST', '/endpoints', {
    url: `http://${name}${run}.culvert.localhost`,
    upstream_url: service.url,
    traffic_policy: policy,
  });
  return body;
}
/** All that is on the page, with the shadow trees of the editors and the values of fields. */
const seen = () =>
  page.evaluate(() => {
    const texts = (root) =>
      [...root.querySelectorAll('*')].flatMap((one) => [
        one.value ?? '',
        ...(one.shadowRoot
          ? [one.shadowRoot.textContent, ...texts(one.shadowRoot)]
          : []),
      ]);
    return [document.body.textContent, ...texts(document)].join('\n');
  });

test('a policy begins with a template, and its problems are found while typing', async () => {
  await go(page, '/endpoints/new');
  await page.getByRole('textbox', { name: 'Upstream URL' }).fill(service.url);
  const choice = page.getByLabel('Begin with a template').first();
  await choice.click();
  await page
    .getByRole('option', { name: 'Limit the requests of each client' })
    .click();
  await until(
    () => editor().innerText(),
    (text) => text.includes('rate-limit'),
  );
  await page.getByText('No problems found.').waitFor();
  await write(
    'on_http_request:\n  - expressions: ["\'é😀\' == req.hots"]\n    actions:\n      - type: dney\n',
  );
  await problems().getByText('did you mean `req.host`?').waitFor();
  await problems().getByText('did you mean `deny`?').waitFor();
  await problems().getByRole('button', { name: 'Line 4' }).click();
  // The position leads to the word, which is typed over.
  for (let n = 0; n < 4; n += 1) await page.keyboard.press('Delete');
  await page.keyboard.type('deny');
  await page.keyboard.press('Escape');
  await until(
    () => problems().getByRole('listitem').count(),
    (count) => count === 1,
  );
  // Of two edits, the answer about the newer one stays.
  await write('on_http_request: [{actions: [{type: dney}]}]');
  await write('on_http_request: [{actions: [{type: deny}]}]');
  await page.getByText('No problems found.').waitFor();
  await write('on_http_request: []');
  const replace = button('Replace it with the template');
  await replace.click();
  await until(
    () => editor().innerText(),
    (text) => text.includes('rate-limit'),
  );
});

test('names are completed and described by the reference', async () => {
  await go(page, '/endpoints/new');
  await write('on_http_request:\n  - actions:\n      - type: rate');
  await page.keyboard.press('Control+End');
  await page.keyboard.press('Control+Space');
  await page.getByRole('option', { name: /^rate-limit/ }).click();
  await until(
    () => editor().innerText(),
    (text) => text.includes('type: rate-limit'),
  );
  await page.getByText('rate-limit', { exact: true }).first().hover();
  await page.getByText('Allows', { exact: false }).first().waitFor();
});

test('secrets are hidden until they are asked for, and saved as they were', async () => {
  const endpoint = await made('mask', POLICY);
  await go(page, `/endpoints/${endpoint.id}`);
  await button('Show secrets').first().waitFor();
  assert.ok(!(await seen()).includes(SECRET));
  await go(page, `/endpoints/${endpoint.id}/edit`);
  await editor().waitFor();
  const panel = page.getByRole('dialog');
  await panel.getByLabel('hidden secret').waitFor();
  assert.ok(!(await seen()).includes(SECRET));
  // The end of the policy is changed; the secret stays as it is, though nobody saw it.
  await editor().click();
  await page.keyboard.press('Control+End');
  await page.keyboard.type(
    '  - actions: [{{type: log, config: {{metadata: {{a: b}}}}}}]'
      .replaceAll('{{', '{')
      .replaceAll('}}', '}'),
  );
  await page.keyboard.press('Escape');
  await panel.getByText('No problems found.').waitFor();
  await panel.getByText('As a command').click();
  await panel.getByLabel('the command', { exact: true }).waitFor();
  assert.ok(!(await seen()).includes(SECRET));
  await panel.getByRole('button', { name: 'Review changes' }).click();
  const review = panel.getByLabel('Changes of the policy').first();
  await review.waitFor();
  await panel.getByText('metadata', { exact: false }).first().waitFor();
  assert.ok(!(await seen()).includes(SECRET));
  await panel.getByRole('button', { name: 'Back to the form' }).click();
  await panel.getByRole('button', { name: 'Show secrets' }).first().click();
  await until(seen, (text) => text.includes(SECRET));
  await panel.getByRole('button', { name: 'Review changes' }).click();
  await panel.getByRole('button', { name: 'Save', exact: true }).click();
  await panel.waitFor({ state: 'hidden' });
  const { body } = await api(page, 'GET', `/endpoints/${endpoint.id}`);
  assert.ok(body.traffic_policy.startsWith(POLICY));
  assert.match(body.traffic_policy, /type: log/);
});

test('a policy is tried beside the editor before it is saved', async () => {
  const endpoint = await made(
    'tried',
    'on_http_response:\n  - actions:\n      - type: compress-response\n',
  );
  await go(page, `/endpoints/${endpoint.id}/edit`);
  const panel = page.getByRole('dialog');
  await panel
    .getByRole('button', { name: 'Try it against recent requests' })
    .click();
  const attempt = panel.getByRole('button', {
    name: 'Run against recent requests',
  });
  await attempt.click();
  await panel.getByText('No kept requests').waitFor();
  await until(
    () => visit(endpoint.public_url, '/tried'),
    (status) => status === 200,
  );
  await write(
    'on_http_request:\n  - name: all\n    actions:\n      - type: deny\n',
  );
  await until(
    async () => {
      await attempt.click();
      return panel.getByText('ends with deny').count();
    },
    (count) => count > 0,
  );
  // Nothing is saved.
  const { body } = await api(page, 'GET', `/endpoints/${endpoint.id}`);
  assert.match(body.traffic_policy, /compress-response/);
});

test('nothing was wrong in the browser', () => {
  assert.deepEqual(faults, []);
});
