// Fills an installation with at least one object of every resource, each text of it being markup that a page must show
// as text. Needs openssl and ssh-keygen.
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { api } from './browser.mjs';

export const MARKUP = '<img src=x onerror="document.title=1"><b>bold</b>';
const run = `${Date.now() % 1_000_000}`;
const texts = { description: MARKUP, metadata: MARKUP };

function keys() {
  const folder = mkdtempSync(join(tmpdir(), 'culvert-seed-'));
  const quiet = { cwd: folder, stdio: 'ignore' };
  const certificate = [
    'req',
    '-x509',
    '-newkey',
    'rsa:2048',
    '-nodes',
    '-days',
    '30',
    '-keyout',
    'key.pem',
    '-out',
    'cert.pem',
    '-subj',
    `/CN=seed${run}.example.com/O=<b>Seed<\\/b>`,
    '-addext',
    `subjectAltName=DNS:seed${run}.example.com`,
  ];
  execFileSync('openssl', certificate, quiet);
  execFileSync(
    'ssh-keygen',
    ['-q', '-t', 'ed25519', '-N', '', '-f', 'id'],
    quiet,
  );
  const read = (name) => readFileSync(join(folder, name), 'utf8');
  const made = {
    certificate: read('cert.pem'),
    key: read('key.pem'),
    ssh: read('id.pub').trim(),
  };
  rmSync(folder, { recursive: true });
  return made;
}

/** Makes the objects; answers with the id of one of each collection. */
export async function seed(page, upstream) {
  const { certificate, key, ssh } = keys();
  const ids = {};
  const make = async (collection, body) => {
    const { status, body: made } = await api(
      page,
      'POST',
      `/${collection}`,
      body,
    );
    if (status !== 201) throw new Error(`${collection}: ${status} ${made.msg}`);
    ids[collection] = made.id;
    return made;
  };
  await make('api_keys', texts);
  await make('bot_users', { name: `${MARKUP}${run}` });
  await make('service_users', { name: `${MARKUP}s${run}` });
  await make('credentials', { ...texts, acl: ['bind:*.example.com'] });
  await make('ssh_credentials', { ...texts, public_key: ssh });
  await make('certificate_authorities', { ...texts, ca_pem: certificate });
  await make('tls_certificates', {
    ...texts,
    certificate_pem: certificate,
    private_key_pem: key,
  });
  await make('reserved_domains', {
    ...texts,
    domain: `seed${run}.example.com`,
    certificate_id: ids.tls_certificates,
  });
  await make('reserved_addrs', texts);
  await make('agent_ingresses', {
    ...texts,
    domain: `agents${run}.example.com`,
  });
  await make('ip_policies', texts);
  await make('ip_policy_rules', {
    ...texts,
    ip_policy_id: ids.ip_policies,
    cidr: '192.0.2.0/24',
    action: 'deny',
  });
  const { body: old } = await api(page, 'GET', '/ip_restrictions');
  for (const one of old.ip_restrictions)
    await api(page, 'DELETE', `/ip_restrictions/${one.id}`);
  await make('ip_restrictions', {
    ...texts,
    type: 'endpoints',
    ip_policy_ids: [ids.ip_policies],
  });
  await make('ssh_certificate_authorities', {
    ...texts,
    private_key_type: 'ed25519',
  });
  const signed = {
    ...texts,
    ssh_certificate_authority_id: ids.ssh_certificate_authorities,
    public_key: ssh,
  };
  await make('ssh_host_certificates', {
    ...signed,
    principals: ['seed.example.com'],
  });
  await make('ssh_user_certificates', { ...signed, principals: ['seed'] });
  await make('alert_rules', {
    ...texts,
    name: MARKUP,
    condition: { type: 'key_expiring', within: '7d' },
  });
  await make('audit_holds', { filter: 'event_id == ""', reason: MARKUP });
  await make('vaults', { ...texts, name: `seed${run}` });
  await make('vault_secrets', {
    ...texts,
    name: `seed${run}`,
    value: MARKUP,
    vault_id: ids.vaults,
  });
  await make('grants', {
    ...texts,
    object_id: ids.vaults,
    grantee: 'role:member',
  });
  await make('kubernetes_operators', {
    ...texts,
    deployment: {
      name: MARKUP,
      namespace: MARKUP,
      cluster_name: MARKUP,
      version: MARKUP,
    },
  });
  await make('event_destinations', {
    ...texts,
    format: 'json',
    target: { file: { path: `seed${run}.ndjson` } },
  });
  const filter = `ev.conn.server_name == "${MARKUP.replaceAll('"', String.raw`\"`)}"`;
  await make('event_subscriptions', {
    ...texts,
    destination_ids: [ids.event_destinations],
    sources: [
      {
        type: 'http_request_complete.v0',
        fields: ['http.response.status_code'],
        filter,
      },
      { type: 'api_key_created.v0' },
    ],
  });
  const endpoint = await make('endpoints', {
    ...texts,
    url: `http://seed${run}.culvert.localhost`,
    upstream_url: upstream,
  });
  return { ids, endpoint };
}

/** Every route of the console, with those of one object of each collection. */
export async function routesOf(page, ids) {
  const model = await page.evaluate(async () =>
    (await fetch('/openapi.json')).json(),
  );
  const routes = [
    '/',
    '/traffic',
    '/traffic?q=502',
    '/audit',
    '/audit?q=created',
    '/connect',
    '/nodes',
    '/nonsense',
    '/compare',
    `/compare?endpoints=${ids.endpoints},ep_none`,
    '/endpoints?q=culvert&order=-public_url&columns=id,metadata,principal',
  ];
  for (const path of Object.keys(model.paths).filter(
    (one) => one.endsWith('/{id}') && one.split('/{').length === 2,
  )) {
    const collection = path.slice(1, -'/{id}'.length);
    const slug = collection.replaceAll('/', '.');
    routes.push(`/${slug}`);
    if (model.paths[`/${collection}`].post) routes.push(`/${slug}/new`);
    const id = ids[collection];
    if (id) routes.push(`/${slug}/${id}`);
    if (id && model.paths[path].patch) routes.push(`/${slug}/${id}/edit`);
  }
  return routes;
}
