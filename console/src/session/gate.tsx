import { useQuery, useQueryClient } from '@tanstack/react-query';
import { type ReactNode, useEffect, useRef, useState } from 'react';
import { onSessionEnd } from '@/api/http';
import { viewer } from '@/live/viewer';
import { Failure, Loading } from '@/ui/states';
import { sessionQuery } from './session';
import { SignIn } from './sign-in';

/** A native dialog: above every other panel, and it keeps the focus. */
function SignInOver() {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog
      ref={dialog}
      className="start-over"
      aria-label="Sign in again"
      onCancel={(event) => event.preventDefault()}
    >
      <SignIn again />
    </dialog>
  );
}

/** Shows the page to who is signed in. When a session ends, the page stays and the sign-in panel is over it. */
export function SessionGate({ children }: { children: ReactNode }) {
  const client = useQueryClient();
  const session = useQuery(sessionQuery);
  const [entered, setEntered] = useState(false);
  const here = Boolean(session.data);

  useEffect(() => {
    onSessionEnd.call = () => client.setQueryData(sessionQuery.queryKey, null);
  }, [client]);
  viewer.owner = session.data
    ? `${session.data.owner_id} ${session.data.key_id ?? ''}`
    : '';
  if (here && !entered) setEntered(true);

  if (session.isPending)
    return (
      <div className="start-screen">
        <Loading />
      </div>
    );
  if (session.isError)
    return (
      <div className="start-screen">
        <Failure error={session.error} retry={() => void session.refetch()} />
      </div>
    );
  if (!entered)
    return (
      <main className="start-screen">
        <SignIn />
      </main>
    );
  return (
    <>
      {children}
      {here ? null : <SignInOver />}
    </>
  );
}
