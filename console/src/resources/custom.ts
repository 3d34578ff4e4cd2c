import { type ComponentType } from 'react';
import { lazyPart } from '@/api/load';
import { type JsonObject, text } from '@/api/json';
import { userStatus } from '@/access/user-status';
import { domainState } from '@/domains/status';
import { servedBy } from '@/endpoints/served-by';
import { inWords } from '@/events/condition';
import { rankOfAlert } from '@/events/alert-order';
import { HEALTH } from '@/events/health-order';
import { roleOf } from '@/session/roles';
import { ERRORS, ONLINE, RATE, type Rank } from './rank';

export interface ColumnDef {
  label: string;
  Cell: ComponentType<{ object: JsonObject }>;
  /** What the column is sorted by. */
  rank: Rank;
  /** Whether the largest come first when its head is pressed. */
  isDown?: boolean;
}

/** What a resource's pages have beyond those drawn from the OpenAPI document. Everything is optional. */
export interface Custom {
  /** What the table shows besides name and time: fields, and keys of `columns` that do not stand at the end. */
  fields?: string[];
  columns?: ColumnDef[];
  /** Other labels of fields. */
  labels?: Record<string, string>;
  /** Whether the statistics of several objects can be compared. */
  comparable?: boolean;
  /** Above the table. */
  ListExtra?: ComponentType;
  /** Between the head of the detail page and its fields. */
  DetailExtra?: ComponentType<{ object: JsonObject }>;
  /** Operations below an object that `DetailExtra` does itself. */
  handled?: string[];
  /** A new object begins with these values. */
  defaults?: JsonObject;
  /** Instead of the form that is drawn from the OpenAPI document. */
  CreatePanel?: ComponentType;
  EditPanel?: ComponentType<{ object: JsonObject }>;
  empty?: {
    title: string;
    text?: string;
    command?: string;
    /** Another page that leads on: its collection, and what its link says. */
    next?: [collection: string, label: string];
  };
  /** What the objects are, in other words than the API's. */
  text?: string;
  /** Why an object is neither edited nor deleted here; nothing if it is. */
  fixed?: (object: JsonObject) => string | undefined;
  /** Deleting asks for the name to be typed. */
  dangerous?: boolean;
}

const DestinationExtra = lazyPart(() => import('@/events/destination-extra'));
const DestinationWizard = lazyPart(() => import('@/events/destination-wizard'));
const DestinationHealth = lazyPart(() => import('@/events/health-cell'));
const SubscriptionExtra = lazyPart(() => import('@/events/subscription-extra'));
const AlertState = lazyPart(() => import('@/events/alert-cell'));
const RuleCondition = lazyPart(() => import('@/events/condition-cell'));
const RuleExtra = lazyPart(() => import('@/events/rule-extra'));
const AgentsExtra = lazyPart(() => import('@/agents/agents-extra'));
const AgentExtra = lazyPart(() => import('@/agents/agent-extra'));
const EndpointExtra = lazyPart(() => import('@/endpoints/endpoint-extra'));
const WhichEndpoint = lazyPart(() => import('@/endpoints/which-endpoint'));
const DomainExtra = lazyPart(() => import('@/domains/domain-extra'));
const DomainStatus = lazyPart(() => import('@/domains/status-cell'));
const CertificateExpiry = lazyPart(() => import('@/domains/expiry-cell'));
const EndpointRate = lazyPart(() => import('@/endpoints/rate-cell'));
const EndpointOnline = lazyPart(() => import('@/endpoints/online-cell'));
const EndpointErrors = lazyPart(() => import('@/endpoints/errors-cell'));
const AgentOfEndpoint = lazyPart(() => import('@/endpoints/served-by-cell'));

const Grantee = lazyPart(() => import('@/access/grantee-cell'));
const KeyForm = lazyPart(() => import('@/access/key-form'));
const KeyExtra = lazyPart(() => import('@/access/key-extra'));
const IpPolicyExtra = lazyPart(() => import('@/access/ip-policy-extra'));
const UserRole = lazyPart(() => import('@/access/user-role-cell'));
const UserStatus = lazyPart(() => import('@/access/user-status-cell'));

/** An endpoint that asks its visitors to sign in. */
const SIGN_IN = `culvert api endpoints create --upstream-url http://localhost:3000 --traffic-policy 'on_http_request: [{actions: [{type: openid-connect, config: {issuer_url: https://id.example.com, client_id: culvert, client_secret: SECRET}}]}]'`;

/** What holds the owner of an object. */
const OWNER = { principal: 'Owner', owner_id: 'Owner' };

export const CUSTOM: Record<string, Custom> = {
  endpoints: {
    fields: ['online', 'served-by', 'requests-a-second', 'errors', 'principal'],
    labels: OWNER,
    columns: [
      { label: 'Online', Cell: EndpointOnline, rank: ONLINE },
      { label: 'Served by', Cell: AgentOfEndpoint, rank: { of: servedBy } },
      {
        label: 'Requests a second',
        Cell: EndpointRate,
        rank: RATE,
        isDown: true,
      },
      { label: 'Errors', Cell: EndpointErrors, rank: ERRORS, isDown: true },
    ],
    comparable: true,
    ListExtra: WhichEndpoint,
    DetailExtra: EndpointExtra,
    handled: ['dry-run', 'get-health'],
    fixed: ({ tunnel_session: agent }) =>
      agent
        ? 'An agent serves this endpoint: change it in the settings of the agent, and stop the agent to end it.'
        : undefined,
    dangerous: true,
    empty: {
      title: 'No endpoints yet',
      text: 'An endpoint is a public address and what is behind it.',
      command: 'culvert http 3000',
    },
  },
  api_keys: {
    fields: ['owner_id'],
    labels: OWNER,
    DetailExtra: KeyExtra,
    CreatePanel: KeyForm,
    handled: [
      'get-restrictions',
      'update-restrictions',
      'delete-restrictions',
      'end-overlap',
    ],
    dangerous: true,
    empty: {
      title: 'No API keys',
      command: 'culvert api api_keys create --description deploys',
    },
  },
  audit_holds: { fields: ['filter', 'until', 'ended_at'] },
  alerts: {
    fields: ['summary'],
    columns: [{ label: 'Alert', Cell: AlertState, rank: { of: rankOfAlert } }],
    empty: {
      title: 'No alerts',
      text: 'Nothing needs attention. While the condition of an alert rule is true of an object, there is an alert.',
      next: ['alert_rules', 'See the alert rules'],
    },
  },
  alert_rules: {
    fields: ['severity', 'enabled', 'destinations'],
    columns: [
      {
        label: 'Condition',
        Cell: RuleCondition,
        rank: { of: ({ condition }) => inWords(condition) },
      },
    ],
    DetailExtra: RuleExtra,
    empty: {
      title: 'No alert rules',
      text: 'A rule says when there is an alert, and which destinations get it.',
      command: `culvert api alert_rules create --name "Slow requests" --condition '{"type": "latency", "quantile": "p99", "above_ms": 2000, "over": "5m"}'`,
    },
  },
  event_destinations: {
    fields: ['target'],
    columns: [{ label: 'Health', Cell: DestinationHealth, rank: HEALTH }],
    DetailExtra: DestinationExtra,
    handled: [
      'get-health',
      'list-attempts',
      'list-dead-letters',
      'redrive',
      'replay',
      'get-replay',
      'test',
    ],
    CreatePanel: DestinationWizard,
    EditPanel: DestinationWizard,
    dangerous: true,
    empty: {
      title: 'No destinations yet',
      text: 'A destination is a system that receives events: a webhook, a stream, a table, a file.',
      command: `culvert api event_destinations create --format json --target '{"file": {"path": "events.ndjson"}}'`,
    },
  },
  event_subscriptions: {
    fields: ['sources', 'destinations'],
    DetailExtra: SubscriptionExtra,
    handled: [
      'get-health',
      'list-sources',
      'create-source',
      'get-source',
      'update-source',
      'delete-source',
    ],
    empty: {
      title: 'No subscriptions yet',
      text: 'A subscription says which events go to which destinations.',
    },
  },
  tunnel_sessions: {
    fields: ['ip', 'os', 'agent_version', 'transport'],
    ListExtra: AgentsExtra,
    DetailExtra: AgentExtra,
    handled: ['stop', 'restart', 'update-agent'],
    empty: {
      title: 'No agent is connected',
      text: 'An agent runs beside a service and brings it online.',
      command: 'culvert http 3000',
    },
  },
  tunnels: {
    ListExtra: AgentsExtra,
    empty: {
      title: 'No agent endpoints',
      text: 'An endpoint that an agent serves is here while the agent is connected.',
      command: 'culvert http 3000',
    },
  },
  'app/users': {
    labels: { provider_user_id: 'Provider user ID' },
    empty: {
      title: 'No application users yet',
      text: 'People who sign in at an endpoint whose traffic policy requires it are here.',
      command: SIGN_IN,
    },
  },
  'app/sessions': {
    empty: {
      title: 'No application sessions',
      text: 'A sign-in at an endpoint whose traffic policy requires it begins a session.',
      command: SIGN_IN,
    },
  },
  reserved_domains: {
    fields: ['cname_target'],
    columns: [
      {
        label: 'Certificate',
        Cell: DomainStatus,
        rank: { of: (object) => domainState(object).word },
      },
    ],
    DetailExtra: DomainExtra,
    handled: [
      'check-certificate',
      'retry-certificate-management',
      'delete-certificate-management-policy',
    ],
    dangerous: true,
    empty: {
      title: 'No domains yet',
      text: 'A domain of your own gets a certificate by itself.',
      command: 'culvert api reserved_domains create --domain app.example.com',
    },
  },
  tls_certificates: {
    fields: ['issuer_common_name', 'private_key_type'],
    columns: [
      {
        label: 'Expires',
        Cell: CertificateExpiry,
        rank: { of: ({ not_after: end }) => text(end) || undefined },
      },
    ],
    dangerous: true,
  },
  credentials: {
    fields: ['acl', 'owner_id'],
    labels: OWNER,
    dangerous: true,
    empty: {
      title: 'No agent credentials yet',
      text: 'An agent signs in with the token of a credential.',
      command: 'culvert api credentials create',
    },
  },
  users: {
    fields: [],
    columns: [
      {
        label: 'Role',
        Cell: UserRole,
        rank: { of: ({ role }) => roleOf(text(role)) },
      },
      {
        label: 'Status',
        Cell: UserStatus,
        rank: { of: (object) => userStatus(object).word },
      },
    ],
    dangerous: true,
  },
  vault_secrets: { fields: ['vault_name', 'created_by'] },
  vaults: { dangerous: true },
  grants: {
    fields: ['object_id'],
    columns: [
      {
        label: 'Grantee',
        Cell: Grantee,
        rank: { of: ({ grantee }) => text(grantee) || undefined },
      },
    ],
  },
  bot_users: {
    text: 'Programs with API keys of their own. The API calls them service users as well.',
  },
  service_users: {
    text: 'Programs with API keys of their own: the same objects as bot users, under their newer name.',
  },
  ip_policies: { DetailExtra: IpPolicyExtra },
  ssh_credentials: { labels: OWNER },
  kubernetes_operators: { labels: OWNER },
  ip_policy_rules: { fields: ['action', 'ip_policy'] },
  reserved_addrs: { dangerous: true },
  certificate_authorities: { dangerous: true },
  ssh_certificate_authorities: { dangerous: true },
};

export function customOf(name: string): Custom {
  return CUSTOM[name] ?? {};
}
