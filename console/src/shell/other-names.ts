import type { Model } from '@/api/model';
import { titleOf } from '@/api/words';
import { navGroups, TOP } from './groups';

/** Names that people try, besides the titles of pages. */
export const NAMES: Record<string, string> = {
  dashboard: '/',
  home: '/',
  statistics: '/',
  metrics: '/',
  login: '/',
  signin: '/',
  requests: '/traffic',
  inspect: '/traffic',
  inspector: '/traffic',
  logs: '/events',
  audit_log: '/audit',
  audit_logs: '/audit',
  sessions: '/tunnel_sessions',
  certificates: '/tls_certificates',
  certs: '/tls_certificates',
  keys: '/api_keys',
  tokens: '/api_keys',
  authtokens: '/credentials',
  people: '/users',
  persons: '/users',
  webhooks: '/event_destinations',
  sinks: '/event_destinations',
  secrets: '/vault_secrets',
  hostnames: '/reserved_domains',
  team: '/users',
  members: '/users',
  bots: '/bot_users',
  policies: '/ip_policies',
  rules: '/ip_policy_rules',
  restrictions: '/ip_restrictions',
  operators: '/kubernetes_operators',
  legal_holds: '/audit_holds',
  alarms: '/alerts',
  notifications: '/alert_rules',
  cluster: '/nodes',
};

const plain = (name: string) =>
  name.toLowerCase().replaceAll(/[^a-z0-9]+/g, '_');

/** The page that an address means which names no page: by its title, by a group of the navigation, or by a word of the list above. */
export function meantBy(model: Model, path: string): string | undefined {
  const [first = '', second, ...rest] = path.replace(/^\/+/, '').split('/');
  // The API writes some collections in two parts.
  if (second && model.resources.has(`${first}/${second}`))
    return ['', `${first}.${second}`, ...rest].join('/');
  const name = plain(first);
  const pages = new Map<string, string>([
    ...navGroups(model.resources).flatMap(
      ({ label, items }): [string, string][] =>
        items[0] ? [[plain(label), items[0].to]] : [],
    ),
    ...[...model.resources.values()].flatMap(
      ({ name: own, slug }): [string, string][] => [
        [plain(titleOf(own)), `/${slug}`],
        [plain(own), `/${slug}`],
      ],
    ),
    ...TOP.map(({ label, to }): [string, string] => [plain(label), to]),
  ]);
  const to = pages.get(name) ?? NAMES[name];
  // A person without the right to a collection has no page of it.
  const isThere =
    to !== undefined &&
    (!NAMES[name] ||
      ['/', '/traffic', '/audit', '/events', '/nodes'].includes(to) ||
      model.resources.has(to.slice(1)));
  return to && isThere && to !== `/${first}`
    ? [to === '/' ? '' : to, ...(second ? [second] : []), ...rest].join('/') ||
        '/'
    : undefined;
}
