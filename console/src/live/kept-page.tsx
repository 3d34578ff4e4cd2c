import { Button, Drawer, Select, TextInput } from '@mantine/core';
import { useInfiniteQuery, useQueryClient } from '@tanstack/react-query';
import {
  type FormEvent,
  type ReactNode,
  lazy,
  Suspense,
  useId,
  useMemo,
  useState,
} from 'react';
import { counted } from '@/api/words';
import { Page } from '@/ui/page';
import { Empty, Failure, Loading } from '@/ui/states';
import { isToday } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import { EventDetail } from './event-detail';
import type { KeptEvent, LiveEvent } from './entry';
import { type KeptSearch, keptQuery } from './kept';
import { LiveList } from './live-list';
import css from './live.module.css';

const CodeEditor = lazy(() => import('@/ui/code-editor'));

interface Props {
  title: string;
  text: string;
  /** The choice between live and kept events. */
  views: ReactNode;
  /** Between the search and its results, and behind them. */
  above?: ReactNode;
  below?: ReactNode;
  search: KeptSearch;
  onSearch: (search: KeptSearch) => void;
  kinds: { value: string; label: string }[];
  /** The types that are searched if no kind is chosen. */
  all: string[];
  /** What an object of these events is called. */
  object: string;
  hasActor?: boolean;
  /** What is said if no event is kept at all. */
  empty: { title: string; text: string };
  heads: string[];
  row: (event: LiveEvent) => ReactNode;
}

const LOOK_AGAIN_MS = 2000;
/** What a search may ask for besides the filter. */
const CONDITIONS = ['type', 'from', 'to', 'object', 'actor'] as const;

const stay = () => {};

/** A page that searches kept events: a filter, a range of time, and pages from the newest to the oldest. */
export function KeptPage({
  title,
  text,
  views,
  search,
  onSearch,
  kinds,
  all,
  object,
  above,
  below,
  hasActor = false,
  empty,
  heads,
  row,
}: Props) {
  const [draft, setDraft] = useState<KeptSearch>(search);
  const [selected, setSelected] = useState<KeptEvent>();
  /** On a phone, results are in sight before the conditions. */
  const [isOpen, setIsOpen] = useState(false);
  const conditions = useId();
  const isNarrowed =
    Boolean(search.filter) || CONDITIONS.some((name) => search[name]);
  const count = CONDITIONS.filter((name) => draft[name]).length;
  const types = useMemo(
    () => (search.type ? [search.type] : all),
    [search.type, all],
  );
  const found = useInfiniteQuery({
    ...keptQuery(types, search),
    // An event is kept about a second after its request, so a page without any looks again.
    refetchInterval: ({ state }) =>
      state.data?.pages.some(({ events }) => events.length > 0)
        ? false
        : LOOK_AGAIN_MS,
    // Pages that are here stay as they are: events do not change.
    staleTime: Infinity,
    // A page that is opened again begins with the newest.
    gcTime: 0,
  });
  const client = useQueryClient();
  const rising = useMemo(
    () =>
      (found.data?.pages ?? []).flatMap(({ events }) => events).toReversed(),
    [found.data],
  );
  const isEmpty = found.data !== undefined && rising.length === 0;
  const {
    hasNextPage: hasMore,
    isFetchingNextPage: isLoadingMore,
    isFetchNextPageError: isStuck,
  } = found;
  const loadMore = () => void found.fetchNextPage({ cancelRefetch: false });
  const set = (change: KeptSearch) =>
    setDraft((now) => ({ ...now, ...change }));
  const submit = (event: FormEvent) => {
    event.preventDefault();
    // The conditions may be the ones of before: newer events may match them.
    void client.resetQueries({ queryKey: keptQuery(types, search).queryKey });
    onSearch({ ...draft, filter: draft.filter?.trim() || undefined });
  };
  const field = (name: 'object' | 'actor', label: string) => (
    <TextInput
      label={label}
      value={draft[name] ?? ''}
      onChange={(event) =>
        set({ [name]: event.currentTarget.value.trim() || undefined })
      }
    />
  );
  const time = (name: 'from' | 'to', label: string) => (
    <TextInput
      type="datetime-local"
      step={1}
      label={label}
      value={draft[name] ?? ''}
      onChange={(event) =>
        set({ [name]: event.currentTarget.value || undefined })
      }
    />
  );
  return (
    <Page title={title} text={text}>
      {views}
      <form className={ui.toolbar} role="search" onSubmit={submit}>
        <div className={ui.grow}>
          <span className={ui.label}>Filter</span>
          <Suspense fallback={null}>
            <CodeEditor
              label="Filter, a condition in CEL on ev"
              language="cel"
              value={draft.filter ?? ''}
              onChange={(filter) => set({ filter })}
            />
          </Suspense>
        </div>
        <div className={css.conditions} id={conditions} data-open={isOpen}>
          <Select
            label="Kind"
            data={kinds}
            searchable
            clearable
            placeholder="All"
            value={draft.type ?? null}
            onChange={(type) => set({ type: type ?? undefined })}
          />
          {time('from', 'From')}
          {time('to', 'To')}
          {field('object', object)}
          {hasActor ? field('actor', 'User or bot ID') : null}
        </div>
        <Button
          className={css.more}
          variant="default"
          aria-expanded={isOpen}
          aria-controls={conditions}
          onClick={() => setIsOpen(!isOpen)}
        >
          {count > 0 ? `Conditions (${count})` : 'Conditions'}
        </Button>
        <Button
          type="submit"
          variant="default"
          loading={found.isLoading || found.isPlaceholderData}
        >
          Search
        </Button>
      </form>
      {above}
      {found.error ? (
        <Failure
          error={found.error}
          retry={isStuck ? loadMore : () => void found.refetch()}
        />
      ) : null}
      {found.isPending ? <Loading /> : null}
      {isEmpty ? (
        <Empty
          {...(hasMore
            ? {
                title: 'Nothing found so far',
                text: 'The search looked at as many events as one page may.',
              }
            : isNarrowed
              ? {
                  title: 'No kept event matches',
                  text: 'Widen the range of time or change the filter.',
                }
              : empty)}
        />
      ) : null}
      {rising.length > 0 ? (
        <div
          className={css.box}
          data-kind={heads.length}
          data-dated={!isToday(rising[0]?.event_timestamp ?? '')}
        >
          <div className={css.head} aria-hidden="true">
            {heads.map((head) => (
              <span key={head}>{head}</span>
            ))}
          </div>
          <LiveList
            label={title}
            events={rising}
            selected={selected?.event_id}
            onSelect={(event) => setSelected(event as KeptEvent)}
            onAway={stay}
            row={row}
            onEnd={hasMore && !isLoadingMore && !isStuck ? loadMore : undefined}
            isWhole={!hasMore}
          />
        </div>
      ) : null}
      {found.data ? (
        <div className={ui.pager}>
          <span className={ui.dim}>
            {hasMore
              ? `${counted(rising.length, 'event')} loaded. Older ones follow as you scroll.`
              : isEmpty
                ? ''
                : `All ${counted(rising.length, 'event')} that match are loaded.`}
          </span>
          {hasMore ? (
            <Button
              variant="default"
              size="xs"
              loading={isLoadingMore}
              onClick={loadMore}
            >
              {isEmpty ? 'Search further' : 'Older'}
            </Button>
          ) : null}
        </div>
      ) : null}
      {below}
      <Drawer
        opened={selected !== undefined}
        onClose={() => setSelected(undefined)}
        title="Event"
        size="lg"
        withOverlay={false}
        trapFocus={false}
        closeOnClickOutside={false}
        returnFocus={false}
      >
        {selected ? <EventDetail event={selected} /> : null}
      </Drawer>
    </Page>
  );
}
