import { type JsonObject, isObject, text } from '@/api/json';

export interface LiveEvent {
  /** Counts up from 1 in the order of arrival. */
  n: number;
  event_id: string;
  event_type: string;
  event_timestamp: string;
  principal: JsonObject | null;
  object: JsonObject;
  /** In updates, the changed fields as they were. */
  previous?: JsonObject;
}

/** An event of the logs, with its place in them. */
export interface KeptEvent extends LiveEvent {
  endpoint: string | undefined;
  audit: JsonObject | undefined;
}

/** The event of an entry of the logs. */
export function keptEvent(entry: JsonObject, n: number): KeptEvent {
  return {
    ...(entry.event as unknown as LiveEvent),
    n,
    endpoint: text(entry.endpoint_id) || undefined,
    audit: isObject(entry.audit) ? entry.audit : undefined,
  };
}
