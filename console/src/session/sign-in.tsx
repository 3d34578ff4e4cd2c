import { useQueryClient } from '@tanstack/react-query';
import { useEffect, useRef } from 'react';
import { signInForm } from './form';
import { sessionQuery } from './session';

/** The form of the sign-in page, for a person whose session ended. `again`: while at work. */
export function SignIn({ again = false }: { again?: boolean }) {
  const place = useRef<HTMLDivElement>(null);
  const client = useQueryClient();
  useEffect(() => {
    const form = signInForm(again, async (session) => {
      client.setQueryData(sessionQuery.queryKey, session);
      await client.invalidateQueries({
        predicate: (query) => query.queryKey[0] !== 'session',
      });
    });
    place.current?.replaceChildren(form);
  }, [again, client]);
  return <div ref={place} className="start-panel" />;
}
