// The form "Restrict by IP" on policies of every form: it changes the restriction and no other byte that matters.
import assert from 'node:assert/strict';
import { fileURLToPath } from 'node:url';
import { after, before, test } from 'node:test';
import { createServer } from 'vite';
import { parse } from 'yaml';

const PHASES = ['on_tcp_connect', 'on_http_request', 'on_http_response'];
const LISTS = {
  allow: ['203.0.113.0/24', '2001:db8::/32'],
  deny: ['203.0.113.7'],
  ip_policies: [],
};
const RULE = {
  name: 'restrict by IP',
  actions: [
    { type: 'restrict-ips', config: { allow: LISTS.allow, deny: LISTS.deny } },
  ],
};

const BLOCK = `# Who wrote this: ops
on_http_request: # the request
  # Old paths go away.
  - name: old
    expressions:
      - req.url.path.startsWith("/old")   # all of it
    actions:
      - type: deny
        config: {status_code: 410}

  # The rest is said here.
  - actions:
      - type: custom-response
        config:
          status_code: 200
          body: |
            hello # no comment
              - not a rule
`;
const POLICIES = {
  nothing: '',
  blank: ' \n',
  'an empty object': '{}',
  'only a comment': '# later\n',
  'an empty phase': 'on_http_request:\n',
  'an empty list': 'on_http_request: []\n',
  'an empty phase before another':
    'on_http_request:\non_http_response:\n  - actions:\n      - type: log\n        config: {metadata: {a: "1"}}\n',
  'YAML with comments': BLOCK,
  'YAML after a marker': `---\n${BLOCK}`,
  'YAML with Windows line ends': BLOCK.replaceAll('\n', '\r\n'),
  'YAML without a last line end': BLOCK.trimEnd(),
  'lists below their keys':
    'on_http_request:\n- actions:\n  - type: log\n    config:\n      metadata:\n        a: "1"\n',
  'YAML on one line':
    'on_http_request: [{actions: [{type: custom-response, config: {body: "[a, {b}]"}}]}]',
  'YAML in brackets with comments':
    '{ # all\n  on_http_request: [ # requests\n    {actions: [{type: deny}]}, # last\n  ],\n}\n',
  'another phase':
    'on_http_response:\n  - actions:\n      - type: log\n        config: {metadata: {a: "1"}}\n# The end.\n',
  'another phase with a block text':
    'on_http_response:\n  - actions:\n      - type: custom-response\n        config:\n          body: |+\n            kept\n\n',
  'anchors and aliases':
    'on_http_request:\n  - &log\n    actions:\n      - type: log\n        config: {metadata: {a: "1"}}\non_http_response:\n  - *log\n',
  JSON: JSON.stringify({
    on_http_request: [
      {
        actions: [
          {
            type: 'custom-response',
            config: { status_code: 200, body: '{"a": [1]}' },
          },
        ],
      },
    ],
  }),
  'JSON with indents': JSON.stringify(
    {
      on_http_request: [{ name: 'one', actions: [{ type: 'deny' }] }],
      on_http_response: [],
    },
    null,
    2,
  ),
  'JSON with tabs': JSON.stringify(
    {
      on_http_response: [
        { actions: [{ type: 'log', config: { metadata: { a: '1' } } }] },
      ],
    },
    null,
    '\t',
  ),
  'JSON with escapes': String.raw`{"on_http_request":[{"actions":[{"type":"custom-response","config":{"body":"\/\ud83d\ude00"}}]}]}`,
};

const EXISTING = {
  block:
    'on_http_request:\n  - name: office\n    actions:\n      - type: restrict-ips\n        config:\n          # Ask the network team.\n          allow:\n            - 192.0.2.0/24 # the office\n            - 203.0.113.0/24 # the other office\n          deny: [192.0.2.9]\n',
  json: JSON.stringify(
    {
      on_http_request: [
        {
          name: 'office',
          actions: [
            {
              type: 'restrict-ips',
              config: {
                allow: ['192.0.2.0/24', '203.0.113.0/24'],
                deny: ['192.0.2.9'],
              },
            },
          ],
        },
      ],
    },
    null,
    2,
  ),
  flow: 'on_http_request: [{name: office, actions: [{type: restrict-ips, config: {allow: [\'192.0.2.0/24\', "203.0.113.0/24"], deny: [192.0.2.9]}}]}]\n',
};

let vite;
let form;
before(async () => {
  vite = await createServer({
    root: fileURLToPath(new URL('..', import.meta.url)),
    logLevel: 'error',
    appType: 'custom',
    server: { middlewareMode: true, ws: false, hmr: false, watch: null },
    optimizeDeps: { noDiscovery: true },
  });
  form = await vite.ssrLoadModule('/src/endpoints/restriction.ts');
});
after(() => vite.close());

/** Whether all lines of one text are in the other, in their order. */
function keepsLines(before, after) {
  const lines = after.split(/\r?\n/);
  let from = 0;
  return before
    .split(/\r?\n/)
    .filter((line) => line.trim() !== '')
    .every((line) => {
      from = lines.indexOf(line, from) + 1;
      return from > 0;
    });
}

for (const [name, text] of Object.entries(POLICIES)) {
  test(`${name}: a restriction is the first rule of its phase, and all else stays`, () => {
    for (const phase of PHASES) {
      const after = form.withRestriction(text, phase, LISTS);
      const before = parse(text) ?? {};
      assert.deepEqual(
        parse(after),
        { ...before, [phase]: [RULE, ...(before[phase] ?? [])] },
        after,
      );
      if (
        text.startsWith('{"') ||
        (text.startsWith('{\n ') && !text.includes('#')) ||
        text.startsWith('{\n\t')
      )
        JSON.parse(after);
      if (text.includes('\r\n')) assert.doesNotMatch(after, /[^\r]\n/);
      if (
        before[phase] !== null &&
        !text.startsWith('{') &&
        !text.includes('[]') &&
        !/: \[\{/.test(text)
      )
        assert.ok(keepsLines(text, after), after);
      for (const comment of text.match(/# .*/g) ?? [])
        assert.ok(after.includes(comment), after);
      const [found, ...others] = form.restrictionsOf(after);
      assert.deepEqual(others, []);
      assert.deepEqual(found.lists, LISTS);
      assert.equal(found.reason, '');
      const without = form.withoutRestriction(after);
      assert.deepEqual(
        Object.entries(parse(without) ?? {}),
        Object.entries(before).filter(
          ([key, rules]) => key !== phase || rules?.length > 0,
        ),
        without,
      );
      if (before[phase]?.length > 0) assert.equal(without, text);
    }
  });
}

for (const [name, text] of Object.entries(EXISTING)) {
  for (const wrapped of [
    text,
    name === 'block'
      ? `${BLOCK.replace('on_http_request', 'on_tcp_connect')}${text}${BLOCK.replace('on_http_request', 'on_http_response')}`
      : text,
  ]) {
    test(`an existing restriction is changed where it is: ${name}, ${wrapped.length} bytes`, () => {
      const [found] = form.restrictionsOf(wrapped);
      assert.deepEqual(found.lists, {
        allow: ['192.0.2.0/24', '203.0.113.0/24'],
        deny: ['192.0.2.9'],
        ip_policies: [],
      });
      assert.equal(found.rule, 'office');
      assert.equal(
        form.withRestriction(wrapped, 'on_tcp_connect', found.lists),
        wrapped,
      );
      const config = {
        allow: ['203.0.113.0/24', '198.51.100.0/24'],
        ip_policies: ['ipp_1'],
      };
      const after = form.withRestriction(wrapped, 'on_tcp_connect', {
        deny: [],
        ...config,
      });
      const wanted = parse(wrapped);
      wanted.on_http_request[0].actions[0].config = config;
      assert.deepEqual(parse(after), wanted, after);
      for (const comment of wrapped.match(/# .*/g) ?? [])
        assert.equal(
          after.includes(comment),
          comment !== '# the office',
          after,
        );
      const without = form.withoutRestriction(wrapped);
      const { on_http_request: _, ...others } = parse(wrapped);
      assert.deepEqual(parse(without) ?? {}, others);
    });
  }
}

test('only the action goes from a rule with others, and all its entries can be replaced', () => {
  const text =
    'on_http_request:\n  - actions:\n      - type: log\n        config: {metadata: {a: "1"}}\n      - type: restrict-ips\n        config: {allow: [192.0.2.1]}\n      - type: deny\n';
  assert.equal(
    form.withoutRestriction(text),
    'on_http_request:\n  - actions:\n      - type: log\n        config: {metadata: {a: "1"}}\n      - type: deny\n',
  );
  assert.equal(
    form.withRestriction(text, 'on_http_request', {
      allow: ['::1'],
      deny: [],
      ip_policies: [],
    }),
    text.replace('192.0.2.1', '"::1"'),
  );
});

test('only denied addresses mean that all others are allowed', () => {
  const lists = form.meant({ allow: [], deny: ['192.0.2.1'], ip_policies: [] });
  assert.deepEqual(lists.allow, ['0.0.0.0/0', '::/0']);
  assert.deepEqual(form.shown(lists).allow, []);
  assert.deepEqual(
    form.meant({ allow: [], deny: ['192.0.2.1'], ip_policies: ['ipp_1'] })
      .allow,
    [],
  );
});

const REFUSED = {
  'is not readable': 'on_http_request: [',
  'an unknown phase': 'inbound: []',
  'no object with phases': '- a',
  'no list in on_http_request': 'on_http_request: {a: 1}',
  'without a type': 'on_http_request: [{actions: [{}]}]',
  '2 restrictions': JSON.stringify({
    on_tcp_connect: [RULE],
    on_http_request: [RULE],
  }),
  'its expressions are true': JSON.stringify({
    on_http_request: [{ ...RULE, expressions: ['true'] }],
  }),
  'not enforced': JSON.stringify({
    on_http_request: [
      {
        actions: [
          { type: 'restrict-ips', config: { allow: ['::1'], enforce: false } },
        ],
      },
    ],
  }),
  'computes addresses': JSON.stringify({
    on_http_request: [
      { actions: [{ type: 'restrict-ips', config: { allow: ['${vars.a}'] } }] },
    ],
  }),
  'cannot change':
    'on_http_request: &a\n  - actions:\n      - &b\n        type: restrict-ips\n        config: {allow: [::1]}\non_http_response: *a\n'.replace(
      'on_http_response: *a',
      'on_http_response: [{actions: [{type: log, config: {metadata: *b}}]}]',
    ),
};
for (const [why, text] of Object.entries(REFUSED)) {
  test(`a policy is not changed when it is not understood: ${why}`, () => {
    assert.throws(
      () => form.withoutRestriction(text),
      (error) =>
        error instanceof form.NotUnderstood && error.message.includes(why),
      why,
    );
    if (why !== 'cannot change')
      assert.throws(
        () => form.withRestriction(text, 'on_http_request', LISTS),
        form.NotUnderstood,
      );
  });
}
