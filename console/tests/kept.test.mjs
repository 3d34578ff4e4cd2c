// Kept events: searched on the pages of traffic and of the audit log, page by page.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { api, base, go, launch, open, signIn, until } from './browser.mjs';
import { upstream, visit } from './upstream.mjs';

let browser, page, faults, service;
const run = Date.now() % 1_000_000;
before(async () => {
  browser = await launch();
  service = await upstream();
  ({ page, faults } = await open(browser, { expected: [/status of 40[014]/] }));
  await signIn(page);
});
after(async () => {
  await browser.close();
  service.server.close();
});

test('kept requests are found by a filter, and lead to their endpoint', async () => {
  const made = await api(page, 'POST', '/endpoints', {
    url: `http://kept${run}.culvert.localhost`,
    upstream_url: service.url,
  });
  assert.equal(made.status, 201, JSON.stringify(made.body));
  const { id, public_url: url } = made.body;
  for (const path of ['/first', '/second/500', '/third'])
    await visit(url, path);
  await until(
    () =>
      api(page, 'GET', `/events?type=http_request_complete.v0&object_id=${id}`),
    ({ body }) => body.events.length >= 3,
  );
  await go(page, '/traffic');
  await page.getByText('Kept', { exact: true }).click();
  await page.getByLabel('Endpoint ID').fill(id);
  await page.getByRole('button', { name: 'Search' }).click();
  await page.getByRole('option', { name: /third/ }).waitFor();
  // The search finds what is newer than the one before, with the conditions that it had.
  await visit(url, '/fourth');
  await until(
    () =>
      api(page, 'GET', `/events?type=http_request_complete.v0&object_id=${id}`),
    ({ body }) => body.events.length >= 4,
  );
  await page.getByRole('button', { name: 'Search' }).click();
  await page.getByRole('option', { name: /fourth/ }).waitFor();
  await page.getByRole('option', { name: /second/ }).click();
  const detail = page.getByRole('dialog', { name: 'Event' });
  await detail.getByRole('link', { name: 'Open the endpoint' }).waitFor();
  await detail.getByRole('button', { name: 'Close' }).click();
  const filter = encodeURIComponent('ev.http.response.status_code == 500');
  await go(page, `/traffic?view=kept&object=${id}&filter=${filter}`);
  await page.getByRole('option', { name: /second/ }).waitFor();
  assert.equal(
    await page.getByRole('option', { name: /first|third/ }).count(),
    0,
  );
  await go(page, '/traffic?view=kept&filter=ev.bogus');
  await page.getByText(/no field "bogus"/).waitFor();
});

test('on a phone, results are in sight, and the conditions open above them', async () => {
  const made = await api(page, 'POST', '/endpoints', {
    url: `http://phone${run}.culvert.localhost`,
    upstream_url: service.url,
  });
  await visit(made.body.public_url, '/small');
  const phone = await open(browser, {
    width: 360,
    height: 640,
    expected: [/status of 401/],
  });
  await signIn(phone.page, `/console/traffic?view=kept&object=${made.body.id}`);
  const row = phone.page.getByRole('option', { name: /small/ });
  await row.waitFor();
  const { y, height } = await row.boundingBox();
  assert.ok(y + height < 640, `${y + height} px down`);
  const endpoint = phone.page.getByLabel('Endpoint ID');
  assert.equal(await endpoint.isVisible(), false);
  await phone.page
    .getByRole('button', { name: 'Conditions (1)', expanded: false })
    .click();
  assert.equal(await endpoint.inputValue(), made.body.id);
  await endpoint.fill('');
  await phone.page.getByRole('button', { name: 'Search' }).click();
  await phone.page.waitForURL((url) => !url.searchParams.has('object'));
  await row.waitFor();
  assert.deepEqual(phone.faults, []);
  await phone.context.close();
});

test('the audit log is read page by page, with its positions', async () => {
  await page.evaluate(
    async ([count, name]) => {
      for (let n = 0; n < count; n += 1) {
        const headers = {
          'x-culvert-console': '1',
          'content-type': 'application/json',
        };
        await fetch('/console/api/vaults', {
          method: 'POST',
          headers,
          body: JSON.stringify({ name: `${name}-${n}` }),
        });
      }
    },
    [105, `kept-${run}`],
  );
  await go(page, '/audit?view=kept&type=vault_created.v0');
  await page
    .getByRole('option', { name: new RegExp(`kept-${run}-104`) })
    .click();
  const detail = page.getByRole('dialog', { name: 'Event' });
  await detail.getByText(/^[0-9a-f]{64}$/).waitFor();
  await detail.getByRole('button', { name: 'Close' }).click();
  // Older events follow as one scrolls, without a button.
  await page
    .getByText(/^\d+ events loaded. Older ones follow/)
    .or(page.getByText(/^All \d+ events that match are loaded/))
    .waitFor();
  await page
    .getByRole('listbox', { name: 'Audit' })
    .evaluate((list) => list.scrollTo(0, list.scrollHeight));
  await page
    .getByRole('option', { name: new RegExp(`kept-${run}-4$`) })
    .waitFor();
  assert.ok((await page.getByRole('option').count()) < 100);
  await page
    .getByRole('listbox', { name: 'Audit' })
    .evaluate((list) => list.scrollTo(0, 0));
  await page
    .getByRole('option', { name: new RegExp(`kept-${run}-104`) })
    .waitFor();
  assert.deepEqual(faults, []);
});

test('a member sees the audit log without what only admins may read, and is told so', async () => {
  const bot = await api(page, 'POST', '/bot_users', { name: `member-${run}` });
  const key = await api(page, 'POST', '/api_keys', { owner_id: bot.body.id });
  await api(page, 'POST', '/vaults', { name: `for-members-${run}` });
  const member = await open(browser, { expected: [/status of 401/] });
  await signIn(member.page, '/console/', key.body.token);
  await go(member.page, '/audit?view=kept');
  await member.page
    .getByRole('option', { name: new RegExp(`for-members-${run}`) })
    .waitFor();
  await member.page
    .getByText(
      /types of events, such as those about keys, sign-ins and policies, are visible to admins only/,
    )
    .waitFor();
  assert.equal(
    await member.page.getByRole('option', { name: /API key/i }).count(),
    0,
  );
  await member.page.getByText('Now', { exact: true }).click();
  await member.page
    .getByText('Nothing has changed since you opened this page')
    .waitFor();
  await member.page.getByText(/visible to admins only/).waitFor();
  await api(page, 'POST', '/vaults', { name: `seen-live-${run}` });
  await member.page
    .getByRole('option', { name: new RegExp(`seen-live-${run}`) })
    .waitFor();
  // Of the destinations of others a member sees the names, and nothing else is asked for.
  const destination = await api(page, 'POST', '/event_destinations', {
    description: `for-admins-${run}`,
    format: 'json',
    target: { debug: { log: true } },
  });
  assert.equal(destination.status, 201, JSON.stringify(destination.body));
  await go(member.page, `/event_destinations/${destination.body.id}`);
  await member.page.getByText('visible to its owner and to admins').waitFor();
  await go(member.page, '/');
  await member.page.getByText('Visible to its owner').first().waitFor();
  assert.deepEqual(member.faults, []);
  await member.context.close();
  await go(page, '/audit?view=kept');
  await page
    .getByRole('option', { name: new RegExp(`for-members-${run}`) })
    .waitFor();
  assert.equal(await page.getByText(/visible to admins only/).count(), 0);
  assert.deepEqual(faults, []);
});

const DECISIONS = [
  'basic_auth',
  'circuit_breaker',
  'ip_policy',
  'oauth',
  'webhook_verification',
];

test('an event has a page of its own, which says which actions did not run', async () => {
  const made = await api(page, 'POST', '/endpoints', {
    url: `http://one${run}.culvert.localhost`,
    upstream_url: service.url,
  });
  await visit(made.body.public_url, '/page');
  const { body } = await until(
    () =>
      api(
        page,
        'GET',
        `/events?type=http_request_complete.v0&object_id=${made.body.id}`,
      ),
    (found) => found.body.events.length > 0,
  );
  const { event } = body.events[0];
  for (const action of DECISIONS)
    assert.equal(event.object[action].decision, 'invalid', action);
  await go(page, `/traffic?view=kept&object=${made.body.id}`);
  await page.getByRole('option', { name: /\/page/ }).click();
  await page
    .getByRole('dialog', { name: 'Event' })
    .getByRole('link', { name: 'Open as a page' })
    .click();
  await page.waitForURL(`${base}/console/events/${event.event_id}`);
  await page.getByRole('heading', { name: 'Event', level: 1 }).waitFor();
  for (const action of DECISIONS) {
    const name = page.locator('dt', {
      hasText: new RegExp(`^${action}\\.decision$`),
    });
    assert.equal(
      await name.locator('+ dd').innerText(),
      'invalid (did not run)',
      action,
    );
  }
  await go(page, '/events/ev_2h0bXHdzY5W9r3oLUMHCLCbPRUc');
  await page.getByRole('heading', { name: 'It is not there' }).waitFor();
});

test('every address leads to its page or says what is missing', async () => {
  const object = 'vault_2h0bXHdzY5W9r3oLUMHCLCbPRUc';
  // Without a reload: what is tested are the addresses.
  const visitPage = async (path) => {
    await page.evaluate((to) => {
      history.pushState({}, '', `/console${to}`);
      dispatchEvent(new PopStateEvent('popstate'));
    }, path);
  };
  for (const [from, to] of [
    [`/events?object_id=${object}`, `/audit?view=kept&object=${object}`],
    [
      '/events?type=http_request_complete.v0&filter=ev.http.response.status_code%20%3D%3D%20502',
      '/traffic?view=kept&type=http_request_complete.v0&filter=ev.http.response.status_code',
    ],
    ['/agents', '/tunnel_sessions'],
    ['/access', '/users'],
    ['/domains-and-certificates', '/reserved_domains'],
    ['/destinations', '/event_destinations'],
    ['/certificates', '/tls_certificates'],
    ['/keys', '/api_keys'],
    ['/API-keys', '/api_keys'],
    ['/overview', '/'],
    ['/app/users', '/app.users'],
    [`/vault/${object}`, undefined],
    [`/vaults/${object}/nothing`, undefined],
    ['/vaults/new/nothing', undefined],
    ['/nothing/at/all', undefined],
  ]) {
    await visitPage(from);
    if (to) {
      const wanted = new URL(`${base}/console${to}`);
      await page.waitForURL(
        (url) =>
          url.pathname === wanted.pathname &&
          [...wanted.searchParams].every(([name, value]) =>
            url.searchParams.get(name)?.startsWith(value),
          ),
      );
      await page.getByRole('heading', { level: 1 }).first().waitFor();
    } else {
      await page
        .getByRole('heading', { name: /^(Not found|It is not there)$/ })
        .first()
        .waitFor();
    }
  }
  // Without anything that says which log: both are offered, with what is known.
  await visitPage('/events?from=2026-01-01T00:00:00');
  await page.getByRole('link', { name: 'Search Traffic' }).click();
  await page.waitForURL(
    (url) =>
      url.pathname === '/console/traffic' &&
      url.searchParams.get('from')?.startsWith('2026-01-01'),
  );
  assert.match(await page.getByLabel('From').inputValue(), /^2026-01-01T00:00/);
  // What is gone: the log that has its deletion, if one has.
  const { body: vault } = await api(page, 'POST', '/vaults', {
    name: `gone-${run}`,
  });
  await api(page, 'DELETE', `/vaults/${vault.id}`);
  await visitPage(`/vaults/${vault.id}`);
  await page.getByRole('link', { name: 'Search the audit log' }).click();
  await page
    .getByRole('option', { name: new RegExp(`Vault deleted.*gone-${run}`) })
    .waitFor();
  await visitPage('/endpoints/ep_2h0bXHdzY5W9r3oLUMHCLCbPRUc');
  await page.getByText(/the audit log says by whom/).waitFor();
  assert.deepEqual(faults, []);
});
