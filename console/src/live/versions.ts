import { type Json, type JsonObject, isObject, text } from '@/api/json';
import { call } from '@/api/http';

/** What stands for a secret that an update changed. */
const CHANGED_SECRET = '[changed]';
const REDACTED = '[redacted]';
const DIFF = '_diff';
const PAGE = 100;
/** Limit of pages that are read. */
const PAGES = 100;

/** Why there is no way back to a version. */
export class NoWayBackError extends Error {}

/** The events about an object, newest first, up to the one with this ID. */
async function eventsUpTo(id: string, eventId: string): Promise<JsonObject[]> {
  const query = new URLSearchParams({
    object_id: id,
    type: 'audit',
    limit: String(PAGE),
  });
  const found: JsonObject[] = [];
  for (let n = 0; n < PAGES; n += 1) {
    const page = await call('GET', `/events?${query}`);
    const entries =
      isObject(page) && Array.isArray(page.events) ? page.events : [];
    for (const entry of entries) {
      const event = isObject(entry) ? entry.event : undefined;
      if (!isObject(event)) continue;
      found.push(event);
      if (event.event_id === eventId) return found;
    }
    const next = isObject(page) ? text(page.next_page_uri) : '';
    const cursor =
      next && new URL(next, location.origin).searchParams.get('cursor');
    if (!cursor) break;
    query.set('cursor', cursor);
  }
  throw new NoWayBackError('The audit log has this event no longer.');
}

/** The fields that were changed after an event, as they were at it. */
export function undone(newestFirst: JsonObject[]): JsonObject {
  const fields: JsonObject = {};
  for (const event of newestFirst.slice(0, -1)) {
    const kind = text(event.event_type);
    if (kind.includes('_deleted.'))
      throw new NoWayBackError('The object was deleted since.');
    if (!kind.includes('_updated.')) continue;
    if (!isObject(event.previous))
      throw new NoWayBackError(
        'An update since does not say how the object was: an earlier version of the server wrote its event.',
      );
    const lost = (Array.isArray(event.truncated) ? event.truncated : [])
      .map(text)
      .find((path) => path.startsWith('previous.') && !path.endsWith(DIFF));
    if (lost)
      throw new NoWayBackError(
        `The old state is not complete: ${lost} is missing because of its size.`,
      );
    for (const [name, value] of Object.entries(event.previous)) {
      const isDiff =
        name.endsWith(DIFF) && name.slice(0, -DIFF.length) in event.previous;
      if (isDiff) continue;
      if (JSON.stringify(value).includes(REDACTED))
        throw new NoWayBackError(
          `${name} had secrets then, and no event has secrets. Set it by editing the object.`,
        );
      if (value === CHANGED_SECRET)
        throw new NoWayBackError(
          `The secret ${name} was changed since, and no event has secrets. Set it by editing the object.`,
        );
      // The oldest update has the value at the event.
      fields[name] = value;
    }
  }
  return fields;
}

/** The body of an update that sets these fields, as far as it can. */
export function bodyFor(
  fields: JsonObject,
  settable: Record<string, unknown>,
): JsonObject {
  const body: JsonObject = {};
  for (const [name, value] of Object.entries(fields)) {
    if (name in settable) body[name] = value;
    else if (`${name}_id` in settable)
      body[`${name}_id`] = isObject(value) ? (value.id ?? null) : null;
  }
  return body;
}

/** The update that goes back to an object's state at an event. */
export async function wayBack(
  id: string,
  eventId: string,
  settable: Record<string, unknown>,
): Promise<Record<string, Json>> {
  const body = bodyFor(undone(await eventsUpTo(id, eventId)), settable);
  if (Object.keys(body).length === 0)
    throw new NoWayBackError('Nothing that can be set has changed since.');
  return body as Record<string, Json>;
}
