import type { Model, Resource } from './model';
import { pluralOf } from './words';

/** Resources whose events are called otherwise. */
const EVENTS: Record<string, string> = {
  credentials: 'tunnel_credential', ssh_credentials: 'ssh_public_key', reserved_addrs: 'tcp_address', reserved_domains: 'domain', vault_secrets: 'secret',
  tunnel_sessions: 'agent_session',
};

/** Whether changes of a resource have event types, so that the audit log has them. */
export function hasEvents({ eventTypes }: Model, name: string): boolean {
  const noun = EVENTS[name] ?? name.replace(/ies$/, 'y').replace(/s$/, '');
  return eventTypes.some((type) => type.startsWith(`${noun}_`) && /_(created|updated|deleted|start|stop)\.v\d+$/.test(type));
}

/** Resources that can be changed and whose changes have no event types. */
export function withoutEvents(model: Model): Resource[] {
  return [...model.resources.values()].filter((one) => (one.create ?? one.update ?? one.remove) && !hasEvents(model, one.name));
}

/** A sentence about them. */
export function listOf(resources: Resource[]): string {
  const names = resources.map(({ name }) => pluralOf(name)).toSorted();
  return names.length < 2 ? names.join('') : `${names.slice(0, -1).join(', ')} and ${names.at(-1) ?? ''}`;
}
