import { useQueryClient } from '@tanstack/react-query';
import { roleOf } from '@/session/roles';
import { signOut } from '@/session/calls';
import { sessionQuery, useSession } from '@/session/session';
import { useScheme } from '@/theme/scheme';
import { IconButton } from '@/ui/button';
import { Icon } from '@/ui/icons';
import { announce } from '@/ui/toast';
import css from './shell.module.css';

/** Ends the session. */
export function useSignOut(): () => void {
  const client = useQueryClient();
  return () =>
    void signOut().then(
      () => {
        client.clear();
        client.setQueryData(sessionQuery.queryKey, null);
        location.assign('/console/');
      },
      (error: Error) => announce(error.message),
    );
}

export function Account() {
  const session = useSession();
  const { isDark, label, toggle } = useScheme();
  const leave = useSignOut();
  return (
    <div className={css.account}>
      <span title={session?.subject}>
        {session ? roleOf(session.role) : ''}
      </span>
      <IconButton
        variant="subtle"
        color="gray"
        aria-label={label}
        title={label}
        onClick={toggle}
      >
        <Icon name={isDark ? 'sun' : 'moon'} />
      </IconButton>
      <IconButton
        variant="subtle"
        color="gray"
        aria-label="Sign out"
        title="Sign out"
        onClick={leave}
      >
        <Icon name="leave" />
      </IconButton>
    </div>
  );
}
