import {
  type AnchorHTMLAttributes,
  type MouseEvent,
  useRef,
  useSyncExternalStore,
} from 'react';
import {
  hrefOf,
  navigate,
  pathOf,
  placeNow,
  searchOf,
  type Target,
  watchPlace,
} from './place';
import { loadRoute } from './routes';

/** The file of a page is loaded when a pointer stays on a link to it for this long. */
const INTENT_MS = 50;

interface Active {
  /** Whether pages below the one that the link names count as that page. */
  exact?: boolean;
  /** Whether the search counts too, as is usual. */
  includeSearch?: boolean;
}

type Anchor = Omit<AnchorHTMLAttributes<HTMLAnchorElement>, 'href'>;

export type LinkProps<P extends string> = Target<P> &
  Anchor & { activeOptions?: Active };

function isActive(target: Target, { exact, includeSearch }: Active): boolean {
  const now = placeNow();
  const path = pathOf(target);
  if (now.pathname !== path && (exact || !now.pathname.startsWith(`${path}/`)))
    return false;
  return (
    includeSearch === false ||
    Object.entries(searchOf(target)).every(
      ([name, value]) => now.search[name] === value,
    )
  );
}

/** The attributes of an anchor that leads to a target. */
export function useLink<P extends string>({
  to,
  params,
  search,
  replace,
  resetScroll,
  activeOptions = {},
  ...anchor
}: LinkProps<P>): AnchorHTMLAttributes<HTMLAnchorElement> {
  const target = {
    to,
    params,
    search,
    ...(replace === undefined ? {} : { replace }),
    ...(resetScroll === undefined ? {} : { resetScroll }),
  } as Target;
  const active = useSyncExternalStore(watchPlace, () =>
    isActive(target, activeOptions),
  );
  const timer = useRef(0);
  const ahead = () => void loadRoute(pathOf(target)).catch(() => {});
  return {
    ...(active ? { 'aria-current': 'page' as const } : {}),
    ...anchor,
    ...(active ? { 'data-status': 'active' } : {}),
    href: hrefOf(target),
    onClick: (event: MouseEvent<HTMLAnchorElement>) => {
      anchor.onClick?.(event);
      const isOther =
        event.button !== 0 ||
        event.metaKey ||
        event.ctrlKey ||
        event.shiftKey ||
        event.altKey ||
        (anchor.target !== undefined && anchor.target !== '_self');
      if (event.defaultPrevented || isOther) return;
      event.preventDefault();
      void navigate(target);
    },
    onMouseEnter: (event) => {
      anchor.onMouseEnter?.(event);
      timer.current = window.setTimeout(ahead, INTENT_MS);
    },
    onMouseLeave: (event) => {
      anchor.onMouseLeave?.(event);
      clearTimeout(timer.current);
    },
    onFocus: (event) => {
      anchor.onFocus?.(event);
      ahead();
    },
    onTouchStart: (event) => {
      anchor.onTouchStart?.(event);
      ahead();
    },
  };
}

/** A link to a page of the console. */
export function Link<P extends string>(props: LinkProps<P>) {
  return <a {...useLink(props)} />;
}
