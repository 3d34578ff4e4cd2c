import {
  Component,
  type ComponentType,
  createContext,
  Fragment,
  type ReactNode,
  Suspense,
  useContext,
  useLayoutEffect,
  useMemo,
  useSyncExternalStore,
} from 'react';
import { load } from '@/api/load';
import { moreStyles } from '@/theme/more';
import { Loading } from '@/ui/states';
import {
  go,
  hrefOf,
  navigate,
  type ParamsOf,
  type Place,
  placeNow,
  scrolledTo,
  type Target,
  watchPlace,
} from './place';
import { match, type Page } from './routes';

/** What pages need around them whose components are of the library. */
const library = async () =>
  (await Promise.all([import('@/theme/styled'), moreStyles()]))[0].Styled;

/** A page in a file of its own. A plain one has no component of the library. */
export function page(
  get: () => Promise<{ default: ComponentType }>,
  isPlain = false,
): Page {
  let Loaded: ComponentType | undefined;
  let loading: Promise<unknown> | undefined;
  let failure: unknown;
  const parts = () => Promise.all([get(), isPlain ? Fragment : library()]);
  const start = () =>
    (loading ??= load(parts).then(
      ([{ default: Inner }, Around]) => {
        failure = undefined;
        Loaded = () => (
          <Around>
            <Inner />
          </Around>
        );
      },
      (error: unknown) => {
        // It is loaded again when somebody goes there again.
        failure = error;
        loading = undefined;
        throw error;
      },
    ));
  const Part = () => {
    if (Loaded) return <Loaded />;
    if (failure !== undefined && !loading) {
      const error = failure;
      failure = undefined;
      throw error;
    }
    // Suspense waits for it, and draws the page again.
    throw start();
  };
  return { Component: Part, load: start };
}

export interface FailureProps {
  error: unknown;
  reset: () => void;
}

interface BoundaryProps {
  /** What failed is drawn again when this changes. */
  place: Place;
  shown: ComponentType<FailureProps>;
  children: ReactNode;
}

/** Shows an error of the page inside in its place. */
class Boundary extends Component<
  BoundaryProps,
  { failed: { error: unknown } | null; place: Place }
> {
  override state = { failed: null, place: this.props.place };

  static getDerivedStateFromError(error: unknown) {
    return { failed: { error } };
  }

  static getDerivedStateFromProps(
    { place }: BoundaryProps,
    state: { place: Place },
  ) {
    return place === state.place ? null : { failed: null, place };
  }

  override render() {
    const failed = this.state.failed as { error: unknown } | null;
    const Shown = this.props.shown;
    return failed ? (
      <Shown
        error={failed.error}
        reset={() => this.setState({ failed: null })}
      />
    ) : (
      this.props.children
    );
  }
}

interface Inside {
  pages: Page[];
  shown: ComponentType<FailureProps>;
}

const InsideContext = createContext<Inside>({
  pages: [],
  shown: () => null,
});

export function usePlace(): Place {
  return useSyncExternalStore(watchPlace, placeNow);
}

export { usePlace as useLocation };

/** The page inside of this one. */
export function Outlet() {
  const { pages, shown } = useContext(InsideContext);
  const place = usePlace();
  const inner = useMemo(
    () => ({ pages: pages.slice(1), shown }),
    [pages, shown],
  );
  const Inner = pages[0]?.Component;
  return Inner ? (
    <InsideContext value={inner}>
      <Boundary place={place} shown={shown}>
        <Suspense fallback={<Loading />}>
          <Inner />
        </Suspense>
      </Boundary>
    </InsideContext>
  ) : null;
}

/** How long a page may take to become as high as it was. */
const GROWING_MS = 5000;

/** Scrolls to where the person was on a page, as soon as that is as high. Who scrolls before stays there. */
function scrollBack(to: number): () => void {
  window.scrollTo(0, to);
  if (window.scrollY >= to - 1) return () => {};
  const growing = new ResizeObserver(() => {
    window.scrollTo(0, to);
    if (window.scrollY >= to - 1) end();
  });
  const end = () => {
    growing.disconnect();
    clearTimeout(timer);
    for (const kind of ['wheel', 'touchstart', 'keydown', 'pointerdown'])
      removeEventListener(kind, end);
  };
  const timer = window.setTimeout(end, GROWING_MS);
  for (const kind of ['wheel', 'touchstart', 'keydown', 'pointerdown'])
    addEventListener(kind, end, { passive: true });
  growing.observe(document.body);
  return end;
}

/** The pages of the address of now inside `shell`; `missing` for an address that no page has. */
export function Pages({
  shell: Shell,
  missing,
  failed,
}: {
  shell: ComponentType;
  missing: Page;
  failed: ComponentType<FailureProps>;
}) {
  const place = usePlace();
  const inside = useMemo(
    () => ({
      pages: match(place.pathname)?.pages ?? [missing],
      shown: failed,
    }),
    [place, missing, failed],
  );
  useLayoutEffect(() => {
    if (place.scroll === 'top') window.scrollTo(0, 0);
    return place.scroll === 'back'
      ? scrollBack(scrolledTo(place.key))
      : undefined;
  }, [place]);
  return (
    <InsideContext value={inside}>
      <Boundary place={place} shown={failed}>
        <Shell />
      </Boundary>
    </InsideContext>
  );
}

/** The values in the address, of a page at `from`. */
export function useParams<P extends string>(_at: {
  from: P;
}): Record<ParamsOf<P>, string> {
  const { pathname } = usePlace();
  return useMemo(() => match(pathname)?.params ?? {}, [pathname]) as Record<
    ParamsOf<P>,
    string
  >;
}

/** What of the address is behind `?`, as `read` understands it. The same object as long as the search is the same. */
export function useSearch<T>(read: (search: Record<string, unknown>) => T): T {
  const { search } = usePlace();
  const text = JSON.stringify(search);
  return useMemo(
    () => read(JSON.parse(text) as Record<string, unknown>),
    [text, read],
  );
}

export function useNavigate(): typeof navigate {
  return navigate;
}

/** Goes to another address when it is drawn, which takes the place of this one. */
export function Navigate<P extends string>(target: Target<P>) {
  const href = hrefOf(target as Target);
  useLayoutEffect(() => void go(href, true, 'top'), [href]);
  return null;
}
