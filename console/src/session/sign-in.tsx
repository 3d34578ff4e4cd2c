import { Button, PasswordInput } from '@mantine/core';
import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { type FormEvent, useState } from 'react';
import { ApiError } from '@/api/error';
import { CopyBlock } from '@/ui/copy';
import { Codes } from '@/ui/states';
import ui from '@/ui/ui.module.css';
import { refusedLink } from './link';
import { providerQuery, sessionQuery, signIn } from './session';
import css from './sign-in.module.css';

/** Why the server sent the browser back from the provider without a session, by the number of its error code. */
const REFUSED: Record<string, string> = {
  205: 'The account is suspended.',
  0: 'The server is busy. Try again shortly.',
  220: 'An IP restriction blocks your address.',
  226: 'Too many sign-ins from your address, or of your user. Try again later.',
  636: 'Your user is inactive. Ask an admin.',
  644: 'You are the last admin, and your groups give you a lower role. Ask the operator.',
  645: 'Your invitation has expired. Ask an admin for another one.',
  647: 'Your user at the provider may not sign in here. Ask an admin for an invitation.',
  648: 'The sign-in was denied, has expired, or began in another browser. Try again.',
  649: 'The provider does not work. The log of the server says why.',
};

function refusedSignIn(): string | undefined {
  const number = new URLSearchParams(location.search).get('refused');
  return number === null
    ? undefined
    : (REFUSED[number] ?? 'The sign-in failed. Try again.');
}

/** Signs in at the OpenID provider, if the installation has one. */
function ProviderSignIn() {
  const provider = useQuery(providerQuery).data;
  const refused = refusedSignIn();
  if (!provider) return null;
  return (
    <>
      {refused ? (
        <p role="alert" className="field-error">
          {refused}
        </p>
      ) : null}
      <Button component="a" href="/console/sign-in" fullWidth>
        Log in with {provider}
      </Button>
      <p className={ui.dim}>Or with an API key:</p>
    </>
  );
}

/** Asks for the token of an API key. `again`: a session ended while the person was at work. */
export function SignIn({ again = false }: { again?: boolean }) {
  const [token, setToken] = useState('');
  const client = useQueryClient();
  const enter = useMutation({
    mutationFn: signIn,
    onSuccess: async (session) => {
      client.setQueryData(sessionQuery.queryKey, session);
      await client.invalidateQueries({
        predicate: (query) => query.queryKey[0] !== 'session',
      });
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (token.trim()) enter.mutate(token.trim());
  };
  const message =
    enter.error instanceof ApiError && enter.error.status === 401
      ? 'The server does not know this token.'
      : enter.error?.message;
  return (
    <form className={css.panel} onSubmit={submit}>
      <img src="/console/assets/icon.svg" width="44" height="44" alt="" />
      <h1>{again ? 'Sign in again' : 'Sign in to culvert'}</h1>
      {again ? (
        <p className={ui.dim}>
          Your session ended. Sign in and go on where you were.
        </p>
      ) : null}
      {refusedLink.message ? (
        <p role="alert" className="field-error">
          {refusedLink.message}
        </p>
      ) : null}
      <ProviderSignIn />
      <PasswordInput
        label="Token of an API key"
        value={token}
        onChange={(event) => setToken(event.currentTarget.value)}
        autoComplete="current-password"
        data-autofocus
        error={message}
        visibilityToggleButtonProps={{ 'aria-label': 'Show the token' }}
      />
      {enter.error instanceof ApiError ? <Codes error={enter.error} /> : null}
      <Button
        type="submit"
        fullWidth
        loading={enter.isPending}
        disabled={!token.trim()}
      >
        Sign in
      </Button>
      <details className={ui.commands}>
        <summary>Where do I find a token?</summary>
        <p className={ui.hint}>
          The first key's token is in the data directory of the server:
        </p>
        <CopyBlock value="cat culvert-data/bootstrap-key" label="the command" />
        <p className={ui.hint}>
          If all tokens are lost, make another key beside the server:
        </p>
        <CopyBlock value="culvert admin create-key" label="the command" />
      </details>
    </form>
  );
}
