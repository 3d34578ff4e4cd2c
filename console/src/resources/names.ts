import { type Json, type JsonObject, isObject } from '@/api/json';
import { escaped } from '@/ui/escaped';

/** The fields that tell objects apart. A public URL has the port that clients need. */
export const NAMES = [
  'public_url',
  'url',
  'domain',
  'name',
  'addr',
  'cidr',
  'subject_common_name',
  'email',
  'rule_name',
  'type',
  'reason',
  'description',
  'id',
];

/** What people call an object: the first of its telling fields that is not empty. */
export function nameOf(object: JsonObject): string {
  for (const key of NAMES) {
    const value = object[key];
    if (key === 'type' && object.id !== undefined) continue;
    if (typeof value === 'string' && value !== '') return escaped(value);
  }
  return typeof object.node === 'string' ? object.node : '';
}

/** What a page about the object is called: its name, or what it is if it has none. The id is beside it. */
export function headingOf(object: JsonObject, noun: string): string {
  const name = nameOf(object);
  return name === object.id
    ? noun.charAt(0).toUpperCase() + noun.slice(1)
    : name;
}

/** Collections by the beginning of their objects' ids. */
const PREFIXES: Record<string, string> = {
  ah: 'audit_holds',
  alr: 'alerts',
  arl: 'alert_rules',
  ak: 'api_keys',
  agin: 'agent_ingresses',
  as: 'app/sessions',
  au: 'app/users',
  bot: 'bot_users',
  ca: 'certificate_authorities',
  cert: 'tls_certificates',
  cr: 'credentials',
  ed: 'event_destinations',
  ep: 'endpoints',
  esb: 'event_subscriptions',
  grant: 'grants',
  ipp: 'ip_policies',
  ipr: 'ip_policy_rules',
  ipx: 'ip_restrictions',
  k8sop: 'kubernetes_operators',
  ra: 'reserved_addrs',
  rd: 'reserved_domains',
  secret: 'vault_secrets',
  service: 'service_users',
  shcrt: 'ssh_host_certificates',
  sshca: 'ssh_certificate_authorities',
  sshcr: 'ssh_credentials',
  sucrt: 'ssh_user_certificates',
  tn: 'tunnels',
  ts: 'tunnel_sessions',
  usr: 'users',
  vault: 'vaults',
};

/** The collection that an id is of. */
export function collectionOf(id: string): string | undefined {
  return PREFIXES[id.slice(0, Math.max(id.indexOf('_'), 0))];
}

/** The collection whose ids a field takes, by the pattern of the field: `^(ipp)_…`. */
export function collectionIn(pattern: string | undefined): string | undefined {
  const prefix = /\(([a-z0-9]+)\)_/.exec(pattern ?? '')?.[1];
  return prefix ? PREFIXES[prefix] : undefined;
}

/** The address of an object in the console, if it is of a known collection. */
export function pathOf(id: string): string | undefined {
  const collection = collectionOf(id);
  return collection && `/${collection.replaceAll('/', '.')}/${id}`;
}

export function items(page: Json, key: string): JsonObject[] {
  const list = isObject(page) ? page[key] : undefined;
  return Array.isArray(list) ? list.filter(isObject) : [];
}
