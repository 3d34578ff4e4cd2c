import { errorOf } from '@/api/http';
import { ask } from './ask';
import { refusedLink, secretOfLink } from './link';

export interface Session {
  /** Nothing for a person who signed in without a key. */
  key_id: string | null;
  owner_id: string;
  /** E-mail address, or name of the bot. */
  subject: string;
  role: string;
  expires_at: string;
}

/** Signs in with the link that opened the page, if one did. */
export async function signInByLink(): Promise<Session | null> {
  const link = secretOfLink();
  if (!link) return null;
  const response = await ask('POST', JSON.stringify({ link }));
  if (response.ok) return (await response.json()) as Session;
  refusedLink.message = (await errorOf(response)).message;
  return null;
}

/** Who is signed in; `null` for nobody. */
export async function readSession(): Promise<Session | null> {
  const response = await ask('GET');
  if (response.status === 401) return signInByLink();
  if (!response.ok) throw await errorOf(response);
  return (await response.json()) as Session;
}

export async function signIn(token: string): Promise<Session> {
  const response = await ask('POST', JSON.stringify({ token }));
  if (!response.ok) throw await errorOf(response);
  return (await response.json()) as Session;
}

/** The name of the OpenID provider that people sign in at; `null` if there is none. */
export async function readProvider(): Promise<string | null> {
  const response = await ask('GET', undefined, '/console/sign-in/methods');
  if (!response.ok) throw await errorOf(response);
  const methods = (await response.json()) as {
    openid: { name: string } | null;
  };
  return methods.openid?.name ?? null;
}

export interface Invited {
  /** E-mail address. */
  subject: string;
  role: string;
  expires_at: string;
  /** E-mail address, or name of the bot. */
  invited_by: string | null;
}

/** Who is invited, and as what. */
export async function lookAtInvitation(invitation: string): Promise<Invited> {
  const response = await ask(
    'POST',
    JSON.stringify({ token: invitation }),
    '/console/invitation/look',
  );
  if (!response.ok) throw await errorOf(response);
  return (await response.json()) as Invited;
}

/** Accepts an invitation. `token` is that of the person's new API key. */
export async function acceptInvitation(
  invitation: string,
): Promise<Session & { token: string }> {
  const response = await ask(
    'POST',
    JSON.stringify({ token: invitation }),
    '/console/invitation',
  );
  if (!response.ok) throw await errorOf(response);
  return (await response.json()) as Session & { token: string };
}

export async function signOut(): Promise<void> {
  const response = await ask('DELETE');
  if (!response.ok && response.status !== 401) throw await errorOf(response);
}
