import { useMutation, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { ApiError } from '@/api/error';
import { acceptInvitation, lookAtInvitation } from '@/session/calls';
import { roleOf } from '@/session/roles';
import { Button, ButtonAnchor } from '@/ui/button';
import { CopyBlock } from '@/ui/copy';
import { Codes, Loading } from '@/ui/states';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';

/** Where a tab keeps the token of its invitation, until it is accepted or the tab is closed. */
const KEPT = 'culvert-invitation';

/** Takes the token out of the address, so that it is not in the history. A reload finds it in the tab. */
function takeToken(): string {
  const given = location.hash.slice(1);
  if (given) {
    sessionStorage.setItem(KEPT, given);
    history.replaceState(null, '', location.pathname);
  }
  return given || (sessionStorage.getItem(KEPT) ?? '');
}

// Opened in a tab that has such a page already, a link changes only what is behind the `#`.
if (location.pathname === '/console/invitation')
  addEventListener('hashchange', () => location.hash && location.reload());

function Refused({ error }: { error: Error }) {
  return (
    <>
      <p role="alert" className="field-error">
        {error.message}
      </p>
      {error instanceof ApiError ? <Codes error={error} /> : null}
      <p className={ui.dim}>
        An invitation works once. If you accepted it, sign in with the token
        that you copied; if not, ask an admin for another one.
      </p>
      <ButtonAnchor href="/console/" variant="default" fullWidth>
        Go to the sign-in
      </ButtonAnchor>
    </>
  );
}

/** The page of an invitation's link. It gives the person a first API key. */
export default function Invitation() {
  const [token] = useState(takeToken);
  const invited = useQuery({
    queryKey: ['session', 'invitation'],
    queryFn: () => lookAtInvitation(token),
    enabled: token !== '',
    retry: false,
    staleTime: Infinity,
  });
  const accept = useMutation({
    mutationFn: () => acceptInvitation(token),
    onSuccess: () => sessionStorage.removeItem(KEPT),
  });
  const refused = accept.error ?? invited.error;
  // An error of the server passes; that the invitation is not valid does not.
  if (refused instanceof ApiError && refused.status === 401)
    sessionStorage.removeItem(KEPT);
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
            <ButtonAnchor href="/console/" fullWidth>
              I have copied it
            </ButtonAnchor>
          </>
        ) : token === '' ? (
          <>
            <p role="alert" className="field-error">
              This link has no invitation. Copy the whole link.
            </p>
            <ButtonAnchor href="/console/" variant="default" fullWidth>
              Go to the console
            </ButtonAnchor>
          </>
        ) : refused ? (
          <Refused error={refused} />
        ) : invited.data ? (
          <>
            <p>
              {invited.data.invited_by ? (
                <>
                  <strong>{invited.data.invited_by}</strong> invites{' '}
                </>
              ) : (
                'This invitation is for '
              )}
              <strong>{invited.data.subject}</strong> with the role{' '}
              <strong>{roleOf(invited.data.role)}</strong>. Accept the
              invitation to get an API key and open the console.
            </p>
            <p className={ui.dim}>
              The invitation is valid until{' '}
              <Time value={invited.data.expires_at} />.
            </p>
            <Button
              fullWidth
              loading={accept.isPending}
              onClick={() => accept.mutate()}
            >
              Accept the invitation
            </Button>
          </>
        ) : (
          <Loading />
        )}
      </div>
    </main>
  );
}
