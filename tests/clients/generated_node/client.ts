import createClient from 'openapi-fetch';
import type { paths } from './api.js';

declare const process: { env: Record<string, string>; exit(status: number): never };

const api = createClient<paths>({
  baseUrl: process.env['CULVERT_API_URL']!,
  headers: { authorization: `Bearer ${process.env['CULVERT_API_KEY']}` },
});

/** The body of a response that is a success. */
function ok<T>(step: string, answer: { data?: T; error?: unknown; response: Response }): T {
  if (!answer.response.ok) throw new Error(`${step}: ${answer.response.status} ${JSON.stringify(answer.error)}`);
  return answer.data as T;
}

function expect(step: string, is: boolean) {
  if (!is) throw new Error(`${step} is not what was expected`);
}

const me = ok('self', await api.GET('/self'));
expect('role', me.role === 'admin');
const policy = ok('create', await api.POST('/ip_policies', { body: { description: 'generated' } }));
expect('description', policy.description === 'generated');
const rule = ok(
  'create a rule',
  await api.POST('/ip_policy_rules', { body: { cidr: '192.0.2.0/24', ip_policy_id: policy.id, action: 'allow' } }),
);
expect('policy', rule.ip_policy.id === policy.id);
const path = { id: policy.id };
const changed = ok('update', await api.PATCH('/ip_policies/{id}', { params: { path }, body: { description: 'changed' } }));
expect('change', changed.description === 'changed');
ok('get', await api.GET('/ip_policies/{id}', { params: { path } }));
const page = ok('list', await api.GET('/ip_policies', { params: { query: { limit: 1 } } }));
expect('page', page.ip_policies[0]?.id === policy.id);
const endpoint = ok(
  'create an endpoint',
  await api.POST('/endpoints', {
    body: { url: 'https://typescript.culvert.localhost', traffic_policy: 'on_http_request: []', upstream_url: 'http://127.0.0.1:9' },
  }),
);
expect('port', endpoint.port === 443);
const key = ok('create a key', await api.POST('/api_keys', { body: {} }));
expect('token', typeof key.token === 'string');
const tried = ok('try a key', await api.POST('/api_keys/dry_run', { body: { role: 'read_only' } }));
expect('role of a key', tried.role === 'read_only');
const alert = ok(
  'create an alert rule',
  await api.POST('/alert_rules', { body: { name: 'generated', condition: { type: 'key_expiring', within: '7d' } } }),
);
expect('condition', alert.condition.type === 'key_expiring');
const query = { order: 'oldest', type: ['ip_policy_created.v0'] } as const;
const events = ok('list events', await api.GET('/events', { params: { query: { ...query, type: [...query.type] } } }));
expect('events', events.events.length > 0);
// A stream is an operation of its own.
const stream = await api.GET('/events/follow', { params: { query: { from: me.account.created_at } }, parseAs: 'stream' });
const reader = stream.data!.getReader();
expect('stream', ((await reader.read()).value?.length ?? 0) > 0);
await reader.cancel();
ok('delete', await api.DELETE('/endpoints/{id}', { params: { path: { id: endpoint.id } } }));
const gone = await api.GET('/endpoints/{id}', { params: { path: { id: endpoint.id } } });
expect('the deleted endpoint', gone.response.status === 404 && gone.error?.status_code === 404);
console.log('openapi-typescript and openapi-fetch: 14 operations');
process.exit(0);
