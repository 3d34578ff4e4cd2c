// The timelines of traffic and of the audit log: what is kept, page by page, and what happens.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
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

/** Makes an endpoint of the service, and waits until requests to it are kept. */
async function requested(name, ...paths) {
  const made = await api(page, 'POST', '/endpoints', {
    url: `http://${name}${run}.culvert.localhost`,
    upstream_url: service.url,
  });
  assert.equal(made.status, 201, JSON.stringify(made.body));
  const { id, public_url: url } = made.body;
  for (const path of paths) await visit(url, path);
  await kept(id, paths.length);
  return { id, url };
}

const kept = (id, count) =>
  until(
    () =>
      api(page, 'GET', `/events?type=http_request_complete.v0&object_id=${id}`),
    ({ body }) => body.events.length >= count,
  );

const rows = (pattern) => page.getByRole('option', { name: pattern });

test('what is kept is there at once, what happens arrives above it, and each is there once', async () => {
  const { id, url } = await requested(
    'kept',
    '/first',
    '/second/500',
    '/third',
  );
  await go(page, `/traffic?object=${id}`);
  await rows(/third/).waitFor();
  await visit(url, '/fourth');
  await rows(/fourth/).waitFor();
  await kept(id, 4);
  // In the log and in the stream: shown once, and a request is one row, without its connection.
  assert.deepEqual(
    (await page.getByRole('option').allInnerTexts()).map(
      (row) => /\/(fourth|third|second|first)/.exec(row)?.[1],
    ),
    ['fourth', 'third', 'second', 'first'],
  );
  await rows(/second/).click();
  const detail = page.getByRole('dialog', { name: 'Event' });
  await detail.getByRole('link', { name: 'Open the endpoint' }).waitFor();
  await detail.getByRole('button', { name: 'Close' }).click();
  const filter = encodeURIComponent('ev.http.response.status_code == 500');
  // An address of before: what it asked for is here.
  await go(page, `/traffic?object=${id}&filter=${filter}`);
  await rows(/second/).waitFor();
  assert.equal(await rows(/first|third/).count(), 0);
  await go(page, '/traffic?filter=ev.bogus');
  await page.getByText(/no field "bogus"/).waitFor();
});

test('nothing is missing between the log and the stream, whichever comes first', async () => {
  for (const slow of [/events\?limit=100/, /events\?follow=true/]) {
    const { id, url } = await requested(`gap${slow.source.length}`, '/one');
    let release;
    const held = new Promise((resolve) => {
      release = resolve;
    });
    await page.route(slow, async (route) => {
      await held;
      await route.fallback();
    });
    await go(page, `/traffic?object=${id}`);
    // The log is read without the stream, if that takes its time.
    if (slow.source.includes('follow')) await rows(/one/).waitFor();
    await visit(url, '/two');
    await kept(id, 2);
    release();
    await rows(/two/).waitFor();
    await rows(/one/).waitFor();
    await visit(url, '/three');
    await rows(/three/).waitFor();
    assert.deepEqual(
      (await page.getByRole('option').allInnerTexts()).map(
        (row) => /\/(one|two|three)/.exec(row)?.[1],
      ),
      ['three', 'two', 'one'],
    );
    await page.unroute(slow);
  }
});

test('a failed request says how long it took and why it failed', async () => {
  const dead = await api(page, 'POST', '/endpoints', {
    url: `http://dead${run}.culvert.localhost`,
    upstream_url: 'http://127.0.0.1:1',
  });
  await visit(dead.body.public_url, '/nothing');
  await go(page, `/traffic?object=${dead.body.id}`);
  const row = rows(/nothing upstream connect failed/);
  await row.waitFor();
  assert.match(await row.innerText(), /502\s+\d+ ms/);
  await row.click({ position: { x: 20, y: 10 } });
  const summary = page.getByLabel('Summary');
  await summary
    .getByText('The network or the upstream refused the connection.')
    .waitFor();
  await summary.getByText(/first byte after \d+ ms/).waitFor();
  // The ID that its client was told finds it.
  const id = await summary.locator('dt:text-is("Request ID") + dd').innerText();
  await summary.getByRole('button', { name: id }).click();
  await page
    .getByRole('button', { name: /^Remove CEL .*Culvert-Request-Id/ })
    .waitFor();
  await row.waitFor();
  const detail = page.getByRole('dialog', { name: 'Event' });
  await row.click({ position: { x: 20, y: 10 } });
  await detail.getByRole('tab', { name: 'Connection' }).click();
  await detail
    .getByLabel('Connection', { exact: true })
    .getByText(/^ev_/)
    .waitFor();
});

test('on a phone, results are in sight', async () => {
  const { id } = await requested('phone', '/small');
  const phone = await open(browser, {
    width: 360,
    height: 640,
    expected: [/status of 401/],
  });
  await signIn(phone.page, `/console/traffic?object=${id}`);
  const row = phone.page.getByRole('option', { name: /small/ });
  await row.waitFor();
  const { y, height } = await row.boundingBox();
  assert.ok(y + height < 640, `${y + height} px down`);
  await phone.page.getByRole('button', { name: `Remove object ${id}` }).click();
  await phone.page.waitForURL((url) => !url.searchParams.has('object'));
  await phone.page.getByRole('option').first().waitFor();
  assert.deepEqual(phone.faults, []);
  await phone.context.close();
});

test('a search is written as CSV and as JSONL, whole', async () => {
  const { id } = await requested('export', '/one', '/two,three');
  await go(page, `/traffic?object=${id}`);
  await rows(/two/).waitFor();
  await page.getByRole('button', { name: 'Export' }).click();
  const written = async (format) => {
    const download = page.waitForEvent('download');
    await page.getByRole('button', { name: format }).click();
    const file = await download;
    assert.equal(file.suggestedFilename(), `traffic.${format.toLowerCase()}`);
    return readFileSync(await file.path(), 'utf8');
  };
  const [head, two, one, end] = (await written('CSV')).split('\r\n');
  assert.match(head, /^event_timestamp,event_type,event_id,endpoint_id,/);
  assert.match(two, /"http:[^"]*\/two,three"/);
  assert.match(one, /\/one,/);
  assert.equal(end, '');
  const lines = (await written('JSONL')).trim().split('\n').map(JSON.parse);
  assert.deepEqual(
    lines.map(({ object }) => object.http.request.url.path),
    ['/two,three', '/one'],
  );
  await page.getByText('2 rows written.').waitFor();
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
  await go(page, '/audit?type=vault_created.v0');
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
  await go(member.page, '/audit');
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
  await go(page, '/audit');
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
  await go(page, `/traffic?object=${made.body.id}`);
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
    [`/events?object_id=${object}`, `/audit?object=${object}`],
    [
      '/events?type=http_request_complete.v0&filter=ev.http.response.status_code%20%3D%3D%20502',
      '/traffic?type=http_request_complete.v0&filter=ev.http.response.status_code',
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
  await page.getByRole('button', { name: /^Remove from .*00:00:00/ }).waitFor();
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
