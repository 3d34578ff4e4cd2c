import { ActionIcon, useMantineColorScheme } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { roleOf } from '@/session/roles';
import { signOut } from '@/session/calls';
import { sessionQuery, useSession } from '@/session/session';
import { Icon } from '@/ui/icons';
import { announce } from '@/ui/toast';
import css from './shell.module.css';

/** The other colours than those that the page has: what they are called, and a call that takes them. */
export function useScheme() {
  // Without transitions, Mantine would inject a style tag, which the page's policy refuses.
  const { colorScheme, setColorScheme } = useMantineColorScheme({
    keepTransitions: true,
  });
  const isDark =
    colorScheme === 'dark' ||
    (colorScheme === 'auto' &&
      matchMedia('(prefers-color-scheme: dark)').matches);
  return {
    isDark,
    label: isDark ? 'Use light colours' : 'Use dark colours',
    toggle: () => setColorScheme(isDark ? 'light' : 'dark'),
  };
}

/** Ends the session. */
export function useSignOut(): () => void {
  const client = useQueryClient();
  const leave = useMutation({
    mutationFn: signOut,
    onSuccess: () => {
      client.clear();
      client.setQueryData(sessionQuery.queryKey, null);
      location.assign('/console/');
    },
    onError: (error) => announce(error.message),
  });
  return () => leave.mutate();
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
      <ActionIcon
        variant="subtle"
        color="gray"
        aria-label={label}
        title={label}
        onClick={toggle}
      >
        <Icon name={isDark ? 'sun' : 'moon'} />
      </ActionIcon>
      <ActionIcon
        variant="subtle"
        color="gray"
        aria-label="Sign out"
        title="Sign out"
        onClick={leave}
      >
        <Icon name="leave" />
      </ActionIcon>
    </div>
  );
}
