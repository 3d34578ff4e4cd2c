import { Link } from '@/routing/link';
import { useLocation } from '@/routing/view';
import { useCollections } from '@/api/collections';
import { Icon } from '@/ui/icons';
import { navGroups, TOP } from './groups';
import css from './shell.module.css';

/** The left navigation. A group is open while one of its pages is shown. */
export function Nav({ onPick }: { onPick: () => void }) {
  const { pathname } = useLocation();
  const groups = navGroups(useCollections());
  const under = (to: string) =>
    pathname === to || pathname.startsWith(`${to}/`);
  return (
    <nav aria-label="Main" className={css.nav}>
      <ul>
        {TOP.map(({ label, to, icon }) => (
          <li key={to}>
            <Link
              to={to}
              activeOptions={{ exact: to === '/', includeSearch: false }}
              onClick={onPick}
            >
              <Icon name={icon} />
              {label}
            </Link>
          </li>
        ))}
        {groups.map((group) => {
          const open = group.items.some(({ to }) => under(to));
          return (
            <li key={group.label}>
              <Link
                to={group.items[0]?.to ?? '/'}
                className={css.group}
                data-open={open}
                onClick={onPick}
                aria-current={undefined}
              >
                <Icon name={group.icon} />
                {group.label}
              </Link>
              {open ? (
                <ul>
                  {group.items.map(({ label, to }) => (
                    <li key={to}>
                      <Link
                        to={to}
                        activeOptions={{ includeSearch: false }}
                        onClick={onPick}
                      >
                        {label}
                      </Link>
                    </li>
                  ))}
                </ul>
              ) : null}
            </li>
          );
        })}
      </ul>
    </nav>
  );
}
