import { type JsonObject, text } from '@/api/json';
import type { Tone } from '@/ui/page';

/** Whether a person may sign in. */
export function userStatus(object: JsonObject): { tone: Tone; word: string } {
  if (object.active === true) return { tone: 'ok', word: 'Active' };
  const end = text(object.invitation_expires_at);
  if (!end) return { tone: 'quiet', word: 'Inactive' };
  return Date.parse(end) > Date.now()
    ? { tone: 'accent', word: 'Invited' }
    : { tone: 'warn', word: 'Invitation expired' };
}
