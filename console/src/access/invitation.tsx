import { Button } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import { useState } from 'react';
import { ApiError } from '@/api/error';
import { acceptInvitation } from '@/session/calls';
import { CopyBlock } from '@/ui/copy';
import { Codes } from '@/ui/states';
import ui from '@/ui/ui.module.css';

/** Takes the token out of the address, so that it is not in the history. */
function takeToken(): string {
  const token = location.hash.slice(1);
  history.replaceState(null, '', location.pathname);
  return token;
}

/** The page of an invitation's link. It gives the person a first API key. */
export function Invitation() {
  const [token] = useState(takeToken);
  const accept = useMutation({ mutationFn: () => acceptInvitation(token) });
  const wrong =
    token === ''
      ? 'This link has no invitation. Copy the whole link.'
      : accept.error?.message;
  return (
    <main className="start-screen">
      <div className="start-panel">
        <img src="/console/assets/icon.svg" width="44" height="44" alt="" />
        <h1>
          {accept.data
            ? `Welcome, ${accept.data.subject}`
            : 'You are invited to culvert'}
        </h1>
        {accept.data ? (
          <>
            <p>
              This is the token of your API key. You sign in with it, and
              programs use it as you. Copy it now; it is not shown again.
            </p>
            <div className={ui.once} role="status">
              <CopyBlock value={accept.data.token} label="token" />
            </div>
            <Button component="a" href="/console/" fullWidth>
              I have copied it
            </Button>
          </>
        ) : (
          <>
            <p>Accept the invitation to get an API key and open the console.</p>
            {wrong ? (
              <p role="alert" className="field-error">
                {wrong}
              </p>
            ) : null}
            {accept.error instanceof ApiError ? (
              <Codes error={accept.error} />
            ) : null}
            <Button
              fullWidth
              loading={accept.isPending}
              disabled={token === ''}
              onClick={() => accept.mutate()}
            >
              Accept the invitation
            </Button>
          </>
        )}
      </div>
    </main>
  );
}
