const CAPITALS = new Set([
  'acl',
  'acme',
  'api',
  'arn',
  'asn',
  'aws',
  'ca',
  'cel',
  'cidr',
  'cname',
  'dns',
  'http',
  'id',
  'ids',
  'ip',
  'ips',
  'json',
  'ns',
  'os',
  'pem',
  'sasl',
  'smtp',
  'ssh',
  'tcp',
  'tls',
  'uri',
  'url',
  'urls',
]);
const SPELLED: Record<string, string> = {
  ids: 'IDs',
  ips: 'IPs',
  urls: 'URLs',
  addr: 'address',
  addrs: 'addresses',
  nats: 'NATS',
  otlp: 'OpenTelemetry',
  s3: 'Amazon S3',
  cloudwatch: 'Amazon CloudWatch',
  firehose: 'Amazon Data Firehose',
  kinesis: 'Amazon Kinesis',
  kafka: 'Kafka',
  datadog: 'Datadog',
  azure: 'Azure',
  clickhouse: 'ClickHouse',
  elasticsearch: 'Elasticsearch and OpenSearch',
  eventbridge: 'Amazon EventBridge',
  hec: 'HEC',
  loki: 'Grafana Loki',
  sqs: 'Amazon SQS',
  ntfy: 'ntfy',
  pagerduty: 'PagerDuty',
  pubsub: 'Google Cloud Pub/Sub',
  postgres: 'PostgreSQL',
  rabbitmq: 'RabbitMQ',
  kubernetes: 'Kubernetes',
  creds: 'credentials',
};
const TITLES: Record<string, string> = {
  'app/users': 'Application users',
  'app/sessions': 'Application sessions',
  tunnel_sessions: 'Agents',
  tunnels: 'Agent endpoints',
  credentials: 'Agent credentials',
  ssh_credentials: 'SSH keys',
  event_destinations: 'Destinations',
  event_subscriptions: 'Subscriptions',
  reserved_domains: 'Domains',
  reserved_addrs: 'TCP addresses',
  vault_secrets: 'Secrets',
};
const SINGULAR: Record<string, string> = {
  tunnel_sessions: 'agent',
  ip_policies: 'IP policy',
  certificate_authorities: 'certificate authority',
  ssh_certificate_authorities: 'SSH certificate authority',
  reserved_addrs: 'TCP address',
  agent_ingresses: 'agent ingress',
};

/** `certificate_pem` becomes "Certificate PEM". */
export function humanize(name: string): string {
  const words = name
    .split(/[_/.-]/)
    .map(
      (word) =>
        SPELLED[word] ?? (CAPITALS.has(word) ? word.toUpperCase() : word),
    );
  const line = words.join(' ');
  return line.charAt(0).toUpperCase() + line.slice(1);
}

/** What a field with IDs of other objects is called where their names are shown: `ip_policy_ids` becomes "IP policies". */
export function referenceLabel(name: string): string {
  const label = humanize(name.replace(/_ids?$/, ''));
  return name.endsWith('_ids')
    ? label.replace(/s?$/, 's').replace(/ys$/, 'ies')
    : label;
}

export function titleOf(resource: string): string {
  return TITLES[resource] ?? humanize(resource);
}

/** One object of the resource, in the middle of a sentence. */
export function nounOf(resource: string): string {
  return lowered(SINGULAR[resource] ?? titleOf(resource).replace(/s$/, ''));
}

function lowered(title: string): string {
  return /^(?!Kubernetes)[A-Z][a-z ]/.test(title)
    ? title.charAt(0).toLowerCase() + title.slice(1)
    : title;
}

/** Several objects of the resource, in the middle of a sentence. */
export function pluralOf(resource: string): string {
  return lowered(titleOf(resource));
}

export function article(noun: string): string {
  return /^([aeio]|SSH|IP|API)/.test(noun) ? `an ${noun}` : `a ${noun}`;
}

/** `api_key_created.v0` becomes "API key created". */
export function eventTitle(type: string): string {
  return humanize(type.replace(/\.v\d+$/, ''));
}

/** "1 event", "2 events". */
export function counted(n: number, noun: string): string {
  return `${n.toLocaleString()} ${noun}${n === 1 ? '' : 's'}`;
}
