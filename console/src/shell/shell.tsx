import { Link } from '@/routing/link';
import { Outlet, useLocation } from '@/routing/view';
import {
  Suspense,
  useEffect,
  useRef,
  useState,
  useSyncExternalStore,
} from 'react';
import { useIsOld } from '@/api/build';
import { connection } from '@/api/connection';
import { lazyPart } from '@/api/load';
import { Button, IconButton } from '@/ui/button';
import { Icon } from '@/ui/icons';
import { Loading } from '@/ui/states';
import { Toast } from '@/ui/toast';
import { Account } from './account';
import { Nav } from './nav';
import css from './shell.module.css';

const Palette = lazyPart(() => import('./palette'));

function LostServer() {
  const isLost = useSyncExternalStore(connection.watch, () => connection.lost);
  return isLost ? (
    <div className={css.lost} role="alert">
      <Icon name="warning" /> The server does not answer. Trying again every two
      seconds.
    </div>
  ) : null;
}

/** A tab that was open during an upgrade. It goes on as long as it needs no other file. */
function OldConsole() {
  return useIsOld() ? (
    <div className={css.lost} role="alert">
      <Icon name="warning" /> The server was upgraded, and this page is of the
      version before.{' '}
      <Button size="compact-xs" onClick={() => location.reload()}>
        Reload the page
      </Button>
    </div>
  ) : null;
}

export function Shell() {
  const [menu, setMenu] = useState(false);
  const [palette, setPalette] = useState(false);
  const main = useRef<HTMLElement>(null);
  const page = useLocation().pathname.split('/')[1];
  const first = useRef(true);
  useEffect(() => {
    const open = (event: KeyboardEvent) => {
      if (!(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey)
        return;
      if (event.key.toLowerCase() !== 'k') return;
      event.preventDefault();
      setPalette(true);
    };
    document.addEventListener('keydown', open);
    return () => document.removeEventListener('keydown', open);
  }, []);
  useEffect(() => {
    // On a new page, a screen reader starts with its heading.
    if (!first.current) main.current?.focus({ preventScroll: true });
    first.current = false;
  }, [page]);
  return (
    <div className={css.shell}>
      <a
        className={css.skip}
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          main.current?.focus();
        }}
      >
        Skip to the page
      </a>
      <section aria-label="Top" className={css.top}>
        <IconButton
          variant="subtle"
          color="gray"
          aria-label={menu ? 'Close the menu' : 'Open the menu'}
          aria-expanded={menu}
          onClick={() => setMenu(!menu)}
        >
          <Icon name={menu ? 'close' : 'menu'} />
        </IconButton>
        <Link to="/" className={css.brand}>
          <img src="/console/assets/icon.svg" width="24" height="24" alt="" />
          culvert
        </Link>
      </section>
      <aside aria-label="Console" className={css.side} data-open={menu}>
        <Link to="/" className={css.brand}>
          <img src="/console/assets/icon.svg" width="26" height="26" alt="" />
          culvert
        </Link>
        <button
          type="button"
          className={css.find}
          onClick={() => setPalette(true)}
        >
          <Icon name="search" size={16} />
          <span>Go to…</span>
          <kbd>Ctrl K</kbd>
        </button>
        <Suspense fallback={<Loading label="Loading the menu" />}>
          <Nav onPick={() => setMenu(false)} />
        </Suspense>
        <Account />
      </aside>
      <main id="main" ref={main} tabIndex={-1} className={css.main}>
        <LostServer />
        <OldConsole />
        <Suspense fallback={<Loading />}>
          <Outlet />
        </Suspense>
      </main>
      {palette ? (
        <Suspense fallback={null}>
          <Palette onClose={() => setPalette(false)} />
        </Suspense>
      ) : null}
      <Toast />
    </div>
  );
}
