// Where the secrets of a policy are in its text: all of them, in whatever form, and as little else as possible.
import assert from 'node:assert/strict';
import { fileURLToPath } from 'node:url';
import { after, before, test } from 'node:test';
import { createServer } from 'vite';

let server, masked, MASK;
before(async () => {
  server = await createServer({
    root: fileURLToPath(new URL('..', import.meta.url)),
    logLevel: 'error',
    appType: 'custom',
    server: { middlewareMode: true, ws: false, hmr: false, watch: null },
    optimizeDeps: { noDiscovery: true },
  });
  ({ masked, MASK } = await server.ssrLoadModule('/src/endpoints/secrets.ts'));
});
after(() => server.close());

const HIDDEN = [
  'on_http_request:\n- actions:\n  - type: basic-auth\n    config: {credentials: [\'a:hush\', "b:hu\\"sh ]"], realm: seen}\n',
  'on_http_request:\n- actions:\n  - type: basic-auth\n    config:\n      credentials:\n      - a:hush\n      - b:hush\n      realm: seen\n',
  'on_http_request:\n- actions:\n  - type: basic-auth\n    config:\n      credentials:\n        # hush\n        - a:hush\n\n        - b:hush\n      realm: seen\n',
  'on_http_request:\r\n- actions:\r\n  - type: verify-webhook\r\n    config:\r\n      secret: >-\r\n        hush\r\n        hush\r\n      seen: x\r\n',
  'on_http_request: [{actions: [{type: verify-webhook, config: {secret: hush hush, provider: seen}}]}]',
  '{"on_http_request": [{"actions": [{"type": "openid-connect", "config": {"client_secret": "hush", "seen": 1}}]}]}',
  '{"on_http_request":\t[{"actions":[{"config":{\n"client_secret"\t:\t"hush",\n"seen": 1}}]}]}',
  'on_tcp_connect:\n- actions:\n  - type: terminate-tls\n    config:\n      server_private_key: |\n        -----BEGIN\n        hush\n      server_certificate: seen\n',
  // Texts that are not whole hide more.
  'seen:\n  credentials: ["a:hush',
  "seen:\n  secret: 'hush\n  hush",
  'seen:\n  - secret: &x hush\n',
];

test('every secret is hidden, and what follows it is seen', () => {
  for (const text of HIDDEN) {
    const shown = masked(text);
    assert.ok(!shown.includes('hush'), shown);
    assert.ok(shown.includes('seen'), shown);
    assert.ok(shown.includes(MASK), shown);
  }
});

test('what is no secret is seen', () => {
  for (const text of [
    '',
    'on_http_request:\n- actions:\n  - type: basic-auth\n    config: {credentials: "[redacted]"}\n',
    "a: {secret: \"${secrets.get('v', 'n')}\"}",
    "on_http_request:\n- expressions: [\"req.headers['secret'] == 'x'\"]\n",
    'on_http_request:\n- name: credentials\n',
  ])
    assert.equal(masked(text), text);
});
