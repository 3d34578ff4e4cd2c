// The wizard of destinations: each target with its fields, a test event at the end, and changes that keep secrets.
import assert from 'node:assert/strict';
import { createHmac } from 'node:crypto';
import { createServer } from 'node:http';
import { after, before, test } from 'node:test';
import { go, launch, open, signIn } from './browser.mjs';
import { program, Server } from './server.mjs';

const ARN = 'arn:aws';
const KEYS = {
  'Kind of auth': 'Credentials',
  'AWS access key ID': 'AKIAEXAMPLE',
  'AWS secret access key': 'wJalrXUtnFEMI',
};
/** What the fields of each target get, by label; `[…]` for lists. The fields are those that are needed. */
const TARGETS = {
  azure_logs_ingestion: {
    'Tenant ID': 'contoso.example',
    'Client ID': 'f3a0c7de-0000-4000-8000-000000000001',
    'Client secret': 'sealed',
    'Logs ingestion URI': 'https://events.ingest.monitor.azure.com',
    'Data collection rule ID': `dcr-${'a'.repeat(32)}`,
    'Data collection stream name': 'Custom-Events',
  },
  clickhouse: { URL: 'https://clickhouse.example:8443', Table: 'events' },
  cloudwatch_logs: {
    ...KEYS,
    'Log group ARN': `${ARN}:logs:eu-west-1:123456789012:log-group:events`,
  },
  datadog: { 'API key': 'a'.repeat(32) },
  debug: { Log: 'Yes' },
  discord: { 'Webhook URL': 'https://discord.example/api/webhooks/1/abc' },
  elasticsearch: { URL: 'https://search.example:9200', Index: 'events' },
  eventbridge: {
    ...KEYS,
    'Event bus ARN': `${ARN}:events:eu-west-1:123456789012:event-bus/events`,
  },
  file: { Path: 'wizard.ndjson' },
  firehose: {
    ...KEYS,
    'Delivery stream ARN': `${ARN}:firehose:eu-west-1:123456789012:deliverystream/events`,
  },
  kafka: { Brokers: ['kafka.example:9092'], Topic: 'events' },
  kinesis: {
    ...KEYS,
    'Stream ARN': `${ARN}:kinesis:eu-west-1:123456789012:stream/events`,
  },
  loki: { URL: 'https://loki.example:3100' },
  nats: { URLs: ['nats://nats.example:4222'] },
  ntfy: { URL: 'https://ntfy.example', Topic: 'alerts' },
  otlp: { Endpoint: 'https://otlp.example' },
  pagerduty: { 'Routing key': 'a'.repeat(32) },
  postgres: { URL: 'postgres://db.example:5432/events', User: 'events' },
  pubsub: {
    Topic: 'projects/p-1/topics/events',
    URL: 'https://pubsub.example',
  },
  rabbitmq: { URLs: ['amqps://rabbit.example:5671'], User: 'events' },
  s3: { ...KEYS, 'Bucket ARN': `${ARN}:s3:::events` },
  slack: { 'Webhook URL': 'https://hooks.slack.example/services/T/B/abc' },
  smtp: {
    Host: 'mail.example',
    From: 'culvert@example.com',
    To: ['ops@example.com'],
  },
  splunk_hec: { URL: 'https://splunk.example:8088', Token: 'a'.repeat(36) },
  sqs: {
    ...KEYS,
    'Queue ARN': `${ARN}:sqs:eu-west-1:123456789012:events`,
  },
  syslog: { URL: 'tls://syslog.example' },
  webhook: { URL: 'https://hooks.example/events' },
};
/** Where each target needs nothing but a choice, an empty form is no mistake of the browser's. */
const FREE = new Set(['debug']);

let browser, server, receiver, page, faults;
const got = [];
let status = 204;
before(async () => {
  browser = await launch();
  if (!program) return;
  receiver = createServer((request, response) => {
    let body = '';
    request
      .on('data', (part) => {
        body += part;
      })
      .on('end', () => {
        got.push({ headers: request.headers, body });
        response.writeHead(status).end('no room');
      });
  });
  await new Promise((resolve) => {
    receiver.listen(0, '127.0.0.1', resolve);
  });
  server = await Server.start([
    '--destinations-allow-plain-http',
    'true',
    '--destinations-allow-networks',
    '127.0.0.1/32',
  ]);
  ({ page, faults } = await open(browser, {
    expected: [/status of 40[014]/],
    at: server.url,
  }));
  await signIn(page, '/console/event_destinations', server.token, server.url);
});
after(async () => {
  receiver?.close();
  receiver?.closeAllConnections();
  await browser.close();
  await server?.remove();
});

const panel = () => page.getByRole('dialog');
const field = (label) =>
  panel()
    .getByRole('textbox', { name: label, exact: true })
    .or(panel().getByRole('combobox', { name: label, exact: true }));

async function fill(label, value) {
  const input = field(label).first();
  if (Array.isArray(value)) {
    for (const one of value) {
      await input.fill(one);
      await input.press('Enter');
    }
  } else if ((await input.getAttribute('aria-haspopup')) === 'listbox') {
    await input.click();
    await page.getByRole('option', { name: value, exact: true }).click();
  } else await input.fill(value);
}

async function begin(kind) {
  await go(page, '/event_destinations/new');
  const search = panel().getByLabel('Where should events go?');
  await search.fill(kind);
  await panel()
    .getByRole('button')
    .filter({ has: page.locator('b') })
    .first()
    .click();
  await panel()
    .getByRole('form', { name: /^Settings of/ })
    .waitFor();
}

test(
  'the wizard knows every target that the API has',
  { skip: !program },
  async () => {
    const model = await page.evaluate(async () =>
      (await fetch('/openapi.json')).json(),
    );
    const kinds = Object.keys(
      model.components.schemas.EventDestinationCreate.properties.target
        .properties,
    );
    assert.deepEqual(kinds.toSorted(), Object.keys(TARGETS).toSorted());
    await go(page, '/event_destinations/new');
    await panel().getByText('Where should events go?').waitFor();
    assert.equal(
      await panel().getByRole('list').last().getByRole('button').count(),
      kinds.length,
    );
  },
);

for (const [kind, values] of Object.entries(TARGETS)) {
  test(
    `${kind}: what is missing is said at its field, and with it the destination is made`,
    { skip: !program },
    async () => {
      await begin(kind);
      // Every field says what it is.
      const labels = await panel().locator('form label').allInnerTexts();
      assert.ok(labels.length >= 3, labels.join());
      const create = panel().getByRole('button', {
        name: 'Create',
        exact: true,
      });
      if (!FREE.has(kind)) {
        await create.click();
        await panel()
          .getByText(/(field needs|fields need) your attention/)
          .waitFor();
        assert.equal(
          (await panel()
            .getByText(/ is required\.|^Choose a kind of/)
            .count()) > 0,
          true,
        );
        assert.equal(
          (
            await server.call('GET', '/event_destinations?limit=1')
          ).body.event_destinations.some(
            ({ description }) => description === kind,
          ),
          false,
        );
      }
      for (const [label, value] of Object.entries(values))
        await fill(label, value);
      await fill('Description', kind);
      await create.click();
      const send = panel().getByRole('button', { name: 'Send a test event' });
      await send.waitFor();
      await panel().getByRole('button', { name: 'Finish' }).click();
      await page.getByRole('heading', { name: kind, level: 1 }).waitFor();

      // A change of something else keeps what is sealed: the server would refuse a target without it.
      await page.getByRole('link', { name: 'Edit' }).click();
      const id = page.url().split('/').at(-2);
      const was = (await server.call('GET', `/event_destinations/${id}`)).body
        .target;
      await field('Description').fill(`${kind} changed`);
      await panel().getByRole('button', { name: 'Save' }).click();
      await panel().getByRole('button', { name: 'Finish' }).click();
      await page
        .getByRole('heading', { name: `${kind} changed`, level: 1 })
        .waitFor();
      assert.deepEqual(
        (await server.call('GET', `/event_destinations/${id}`)).body.target,
        was,
      );
    },
  );
}

/** Whether the receiver's last request was signed with this secret. */
function isSigned({ headers, body }, secret) {
  const signed = `${headers['webhook-id']}.${headers['webhook-timestamp']}.${body}`;
  const mac = createHmac(
    'sha256',
    Buffer.from(secret.replace('whsec_', ''), 'base64'),
  )
    .update(signed)
    .digest('base64');
  return headers['webhook-signature'].split(' ').includes(`v1,${mac}`);
}

test(
  'a webhook gets a test event, its answer is shown, and a change keeps its secret and header values',
  { skip: !program },
  async () => {
    const url = `http://127.0.0.1:${receiver.address().port}/hook`;
    await begin('webhook');
    await fill('URL', url);
    await panel()
      .getByText(/more fields?$/)
      .click();
    await panel()
      .getByRole('group', { name: 'Headers' })
      .getByRole('button', { name: /^(Set|Add)/ })
      .first()
      .click();
    await panel().getByLabel('Headers, name 1').fill('x-token');
    await panel().getByLabel('Headers, value 1').fill('sealed-value');
    await fill('Description', 'hook');
    await panel()
      .getByRole('combobox', { name: 'Events' })
      .or(panel().getByRole('textbox', { name: 'Events' }))
      .fill('Vault created');
    await page.getByRole('option', { name: 'Vault created' }).click();
    await page.keyboard.press('Escape');
    await panel().getByRole('button', { name: 'Create', exact: true }).click();
    const secret = (
      await panel().getByRole('status').locator('pre').innerText()
    ).trim();
    await panel().getByRole('button', { name: 'Send a test event' }).click();
    await panel().getByText('The destination took the test event.').waitFor();
    assert.ok(isSigned(got.at(-1), secret));
    assert.equal(got.at(-1).headers['x-token'], 'sealed-value');
    status = 500;
    await panel().getByRole('button', { name: 'Send a test event' }).click();
    await panel().getByRole('alert').getByText(/500/).waitFor();
    status = 204;
    await panel().getByRole('button', { name: 'Finish' }).click();
    await page.getByRole('heading', { name: 'hook', level: 1 }).waitFor();
    await page.getByText('vault_created.v0').waitFor();

    await page.getByRole('link', { name: 'Edit' }).click();
    // Secrets go to no other address.
    await field('URL').fill(`${url}/moved`);
    await panel().getByRole('button', { name: 'Save' }).click();
    await panel()
      .getByRole('alert')
      .getByText(/send its secrets again/)
      .waitFor();
    await field('URL').fill(url);
    await fill('Mode', 'batch');
    await panel().getByRole('button', { name: 'Save' }).click();
    await panel().getByRole('button', { name: 'Send a test event' }).click();
    await panel().getByText('The destination took the test event.').waitFor();
    assert.ok(
      isSigned(got.at(-1), secret),
      'the secret is still that of the creation',
    );
    assert.equal(got.at(-1).headers['x-token'], 'sealed-value');
  },
);

test(
  'a token of NATS survives a change of another field',
  { skip: !program },
  async () => {
    const made = await server.make('event_destinations', {
      format: 'json',
      description: 'with token',
      target: {
        nats: {
          urls: ['nats://nats.example:4222'],
          credentials: { token: 'sealed' },
        },
      },
    });
    await go(page, `/event_destinations/${made.id}/edit`);
    await panel()
      .getByPlaceholder('A value is stored. Leave this empty to keep it.')
      .first()
      .waitFor();
    await field('Subject prefix').fill('moved');
    await panel().getByRole('button', { name: 'Save' }).click();
    await panel().getByRole('button', { name: 'Finish' }).click();
    const { body } = await server.call('GET', `/event_destinations/${made.id}`);
    assert.equal(body.target.nats.subject_prefix, 'moved');
    // Nothing but a stored token is shown as an empty text.
    assert.equal(body.target.nats.credentials.token, '');
  },
);

test('none of this left an error in the console', { skip: !program }, () =>
  assert.deepEqual(faults, []),
);
