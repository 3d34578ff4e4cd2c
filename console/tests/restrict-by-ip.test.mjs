// An endpoint is restricted to a network on its page, and requests from elsewhere are rejected.
import assert from 'node:assert/strict';
import { createServer, connect } from 'node:net';
import { after, before, test } from 'node:test';
import { connect as connectTls } from 'node:tls';
import { api, go, launch, open, signIn, until } from './browser.mjs';
import { program, Server, tcpPorts } from './server.mjs';
import { upstream, visit } from './upstream.mjs';

let browser, page, faults, service, streams, server;
before(async () => {
  browser = await launch();
  service = await upstream();
  streams = createServer((socket) =>
    socket.on('error', () => {}).end('hello\n'),
  );
  await new Promise((resolve) => {
    streams.listen(0, '127.0.0.1', resolve);
  });
  if (!program) return;
  server = await Server.start(['--edge-tcp-ports', tcpPorts()]);
  ({ page, faults } = await open(browser, {
    expected: [/status of 400/],
    at: server.url,
  }));
  await signIn(page, '/console/', server.token, server.url);
});
after(async () => {
  await browser.close();
  service.server.close();
  streams.close();
  await server?.remove();
});

const section = () =>
  page.locator('section').filter({
    has: page.getByRole('heading', { name: 'Restrict by IP', level: 2 }),
  });
const button = (name) => section().getByRole('button', { name, exact: true });
async function enter(list, address) {
  await section().getByLabel(list, { exact: true }).fill(address);
  await page.keyboard.press('Enter');
}

const POLICY =
  '# Kept.\non_http_response:\n  - actions:\n      - type: add-headers # Kept too.\n        config: {headers: {x-seen: "1"}}\n';

test(
  'an endpoint is restricted by IP, the restriction changed and removed, and the policy keeps its other rules',
  { skip: !program },
  async () => {
    const { body: endpoint } = await api(page, 'POST', '/endpoints', {
      url: `http://restrict${Date.now() % 1_000_000}.culvert.localhost`,
      upstream_url: service.url,
      traffic_policy: POLICY,
    });
    const policy = async () =>
      (await api(page, 'GET', `/endpoints/${endpoint.id}`)).body.traffic_policy;
    const gives = (status) =>
      until(
        () => visit(endpoint.public_url, '/'),
        (got) => got === status,
      );
    await gives(200);
    await go(page, `/endpoints/${endpoint.id}`);
    await section()
      .getByText('rejects no client because of its address')
      .waitFor();

    // The server refuses an invalid address, and says at which entry.
    await button('Restrict').click();
    await button('Save restriction').click();
    await section()
      .getByText('Enter an address or choose an IP policy.')
      .waitFor();
    await enter('Allow', 'not-an-address');
    await button('Save restriction').click();
    await section()
      .getByText(/allow\[0\]/)
      .waitFor();
    await section().getByLabel('Allow', { exact: true }).press('Backspace');
    // What was typed is taken, also without Enter.
    await section().getByLabel('Allow', { exact: true }).fill('203.0.113.0/24');
    await button('Save restriction').click();
    await section().getByText('203.0.113.0/24', { exact: true }).waitFor();
    await button('Change').waitFor();
    await gives(403);

    await button('Change').click();
    await enter('Allow', '127.0.0.0/8');
    await button('Save restriction').click();
    await section().getByText('127.0.0.0/8', { exact: true }).waitFor();
    await gives(200);
    const restricted = await policy();
    assert.ok(restricted.startsWith(POLICY), restricted);

    // What this page shows is no longer the policy, so it is not overwritten.
    await button('Change').click();
    const other = restricted.replace('127.0.0.0/8', '192.0.2.1');
    assert.equal(
      (
        await api(page, 'PATCH', `/endpoints/${endpoint.id}`, {
          traffic_policy: other,
        })
      ).status,
      200,
    );
    await enter('Deny', '203.0.113.9');
    await button('Save restriction').click();
    await section()
      .getByText('The policy has changed since this page showed it.')
      .waitFor();
    assert.equal(await policy(), other);
    await button('Cancel').click();
    await section().getByText('192.0.2.1', { exact: true }).waitFor();

    await button('Remove').click();
    await page
      .getByRole('dialog')
      .getByRole('button', { name: 'Remove restriction' })
      .click();
    await section()
      .getByText('rejects no client because of its address')
      .waitFor();
    assert.equal(await policy(), POLICY);
    await gives(200);

    // A restriction that is more than the form knows is shown, and stays.
    const conditional =
      'on_http_request:\n  - name: admins\n    expressions: [req.url.path.startsWith("/admin")]\n    actions:\n      - type: restrict-ips\n        config: {allow: [192.0.2.1]}\n';
    const { body: second } = await api(page, 'POST', '/endpoints', {
      url: `http://second-${new URL(endpoint.url).host}`,
      upstream_url: service.url,
      traffic_policy: conditional,
    });
    await go(page, `/endpoints/${second.id}`);
    await section()
      .getByText('it applies only if its expressions are true')
      .waitFor();
    await section().getByText('192.0.2.1', { exact: true }).waitFor();
    assert.equal(await section().getByRole('button').count(), 0);
    assert.deepEqual(faults, []);
  },
);

/** What a client gets of an endpoint of streams: what its service says, or nothing. */
function said(endpoint) {
  const [host, port] =
    endpoint.proto === 'tcp'
      ? ['127.0.0.1', endpoint.port]
      : server.listeners.https.split(':');
  return new Promise((resolve) => {
    const socket =
      endpoint.proto === 'tcp'
        ? connect(port, host)
        : connectTls({
            host,
            port,
            servername: endpoint.host,
            rejectUnauthorized: false,
          });
    let got = '';
    socket
      .on('data', (piece) => {
        got += piece;
      })
      .on('error', () => resolve(got))
      .on('close', () => resolve(got));
  });
}

const STREAMS = {
  tcp: { url: 'tcp://', rule: 'log\n        config: {metadata: {a: "1"}}' },
  tls: { url: 'tls://restricted.culvert.localhost', rule: 'terminate-tls' },
};
for (const [kind, { url, rule }] of Object.entries(STREAMS)) {
  test(
    `so is a ${kind} endpoint, by addresses and by IP policies`,
    { skip: !program },
    async () => {
      const policy = `# Kept.\non_tcp_connect:\n  - name: other # Kept too.\n    actions:\n      - type: ${rule}\n`;
      const endpoint = await server.make('endpoints', {
        url,
        upstream_url: `tcp://127.0.0.1:${streams.address().port}`,
        traffic_policy: policy,
      });
      // The form offers what was there when it opened.
      const office = await server.make('ip_policies', {
        description: `office of ${kind}`,
      });
      const passes = () =>
        until(
          () => said(endpoint),
          (got) => got === 'hello\n',
        );
      const isRefused = () =>
        until(
          () => said(endpoint),
          (got) => got === '',
        );
      await passes();
      await go(page, `/endpoints/${endpoint.id}`);
      await button('Restrict').click();
      await enter('Allow', '203.0.113.0/24');
      await button('Save restriction').click();
      await section().getByText('on_tcp_connect').waitFor();
      await isRefused();
      await button('Change').click();
      await enter('Allow', '127.0.0.0/8');
      await button('Save restriction').click();
      await section().getByText('127.0.0.0/8', { exact: true }).waitFor();
      await passes();
      await button('Change').click();
      await enter('Deny', '127.0.0.1');
      await button('Save restriction').click();
      await section().getByText('127.0.0.1', { exact: true }).waitFor();
      await isRefused();
      await button('Remove').click();
      await page
        .getByRole('dialog')
        .getByRole('button', { name: 'Remove restriction' })
        .click();
      await section()
        .getByText('rejects no client because of its address')
        .waitFor();
      assert.equal(
        (await server.call('GET', `/endpoints/${endpoint.id}`)).body
          .traffic_policy,
        policy,
      );
      await passes();

      // A policy instead of addresses: its rules decide, and a change of them needs no change of the endpoint.
      const allow = await server.make('ip_policy_rules', {
        ip_policy_id: office.id,
        cidr: '198.51.100.0/24',
        action: 'allow',
      });
      await button('Restrict').click();
      await section()
        .getByRole('combobox', { name: 'IP policies' })
        .fill(`office of ${kind}`);
      await page
        .getByRole('option', { name: new RegExp(`office of ${kind}`) })
        .click();
      await page.keyboard.press('Escape');
      await button('Save restriction').click();
      await button('Change').waitFor();
      await section().getByText(office.id, { exact: true }).waitFor();
      await isRefused();
      await server.call('PATCH', `/ip_policy_rules/${allow.id}`, {
        cidr: '127.0.0.0/8',
      });
      await passes();
      await server.make('ip_policy_rules', {
        ip_policy_id: office.id,
        cidr: '127.0.0.1/32',
        action: 'deny',
      });
      await isRefused();
      assert.deepEqual(faults, []);
    },
  );
}
