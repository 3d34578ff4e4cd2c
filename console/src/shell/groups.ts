import { titleOf } from '@/api/words';
import type { IconName } from '@/ui/icons';

export interface NavItem {
  label: string;
  to: string;
}

export interface NavGroup {
  label: string;
  icon: IconName;
  items: NavItem[];
}

const GROUPS: { label: string; icon: IconName; resources: string[] }[] = [
  {
    label: 'Agents',
    icon: 'agents',
    resources: [
      'tunnel_sessions',
      'tunnels',
      'credentials',
      'ssh_credentials',
      'agent_ingresses',
    ],
  },
  {
    label: 'Domains and certificates',
    icon: 'domains',
    resources: [
      'reserved_domains',
      'tls_certificates',
      'certificate_authorities',
      'reserved_addrs',
    ],
  },
  {
    label: 'Events',
    icon: 'events',
    resources: [
      'event_destinations',
      'event_subscriptions',
      'alerts',
      'alert_rules',
      'audit_holds',
    ],
  },
  {
    label: 'Access',
    icon: 'access',
    resources: [
      'users',
      'api_keys',
      'bot_users',
      'service_users',
      'grants',
      'ip_restrictions',
      'ip_policies',
      'ip_policy_rules',
    ],
  },
];

/** Pages that stand alone in the navigation. */
export const TOP: (NavItem & { icon: IconName })[] = [
  { label: 'Overview', to: '/', icon: 'overview' },
  { label: 'Traffic', to: '/traffic', icon: 'traffic' },
  { label: 'Audit', to: '/audit', icon: 'audit' },
  { label: 'Endpoints', to: '/endpoints', icon: 'endpoints' },
  { label: 'Nodes', to: '/nodes', icon: 'nodes' },
];

/** What the navigation needs to know of a collection. */
interface Named {
  name: string;
  slug: string;
}

const item = (resource: Named): NavItem => ({
  label: titleOf(resource.name),
  to: `/${resource.slug}`,
});

/** The navigation: the groups above, and every other resource of the API under "More". */
export function navGroups(collections: ReadonlyMap<string, Named>): NavGroup[] {
  const left = new Map(collections);
  left.delete('endpoints');
  const groups = GROUPS.map(({ label, icon, resources }) => {
    const there = resources.flatMap((name) => left.get(name) ?? []);
    for (const name of resources) left.delete(name);
    return { label, icon, items: there.map(item) };
  });
  return [
    ...groups,
    {
      label: 'More',
      icon: 'more' as const,
      items: [...left.values()].map(item),
    },
  ].filter((group) => group.items.length > 0);
}
