import { Button, Drawer, Select, TextInput } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { type FormEvent, type ReactNode, lazy, Suspense, useMemo, useState } from 'react';
import { Page } from '@/ui/page';
import { Empty, Failure, Loading } from '@/ui/states';
import { isToday } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import { EventDetail } from './event-detail';
import { type KeptEvent, type KeptSearch, keptQuery } from './kept';
import { LiveList } from './live-list';
import type { LiveEvent } from './tail';
import css from './live.module.css';

const CodeEditor = lazy(() => import('@/ui/code-editor'));

interface Props {
  title: string;
  text: string;
  /** The choice between live and kept events. */
  views: ReactNode;
  search: KeptSearch;
  onSearch: (search: KeptSearch) => void;
  kinds: { value: string; label: string }[];
  /** The types that are searched if no kind is chosen. */
  all: string[];
  /** What an object of these events is called. */
  object: string;
  hasActor?: boolean;
  heads: string[];
  row: (event: LiveEvent) => ReactNode;
}

const LOOK_AGAIN_MS = 2000;

const stay = () => {};

/** A page that searches kept events: a filter, a range of time, and pages from the newest to the oldest. */
export function KeptPage({ title, text, views, search, onSearch, kinds, all, object, hasActor = false, heads, row }: Props) {
  const [draft, setDraft] = useState<KeptSearch>({ ...search, cursor: undefined });
  const [selected, setSelected] = useState<KeptEvent>();
  const types = useMemo(() => (search.type ? [search.type] : all), [search.type, all]);
  const found = useQuery({
    ...keptQuery(types, search),
    // An event is kept about a second after its request, so a page without any looks again.
    refetchInterval: ({ state }) => (search.cursor || state.data?.events.length ? false : LOOK_AGAIN_MS),
  });
  const events = found.data?.events ?? [];
  const rising = useMemo(() => events.toReversed(), [events]);
  const next = found.data?.next;
  const set = (change: KeptSearch) => setDraft((now) => ({ ...now, ...change }));
  const submit = (event: FormEvent) => {
    event.preventDefault();
    onSearch({ ...draft, filter: draft.filter?.trim() || undefined });
  };
  const field = (name: 'object' | 'actor', label: string) => (
    <TextInput label={label} value={draft[name] ?? ''} onChange={(event) => set({ [name]: event.currentTarget.value.trim() || undefined })} />
  );
  const time = (name: 'from' | 'to', label: string) => (
    <TextInput type="datetime-local" step={1} label={label} value={draft[name] ?? ''} onChange={(event) => set({ [name]: event.currentTarget.value || undefined })} />
  );
  return (
    <Page title={title} text={text}>
      {views}
      <form className={ui.toolbar} role="search" onSubmit={submit}>
        <div className={ui.grow}>
          <span className={ui.label}>Filter</span>
          <Suspense fallback={null}><CodeEditor label="Filter, a condition in CEL on ev" language="cel" value={draft.filter ?? ''} onChange={(filter) => set({ filter })} /></Suspense>
        </div>
        <Select label="Kind" data={kinds} searchable clearable placeholder="All" value={draft.type ?? null} onChange={(type) => set({ type: type ?? undefined })} />
        {time('from', 'From')}
        {time('to', 'To')}
        {field('object', object)}
        {hasActor ? field('actor', 'User or bot ID') : null}
        <Button type="submit" variant="default" loading={found.isLoading || found.isPlaceholderData}>Search</Button>
      </form>
      {found.error ? <Failure error={found.error} retry={() => void found.refetch()} /> : null}
      {found.isPending ? <Loading /> : null}
      {found.data && events.length === 0 ? (
        <Empty title={next ? 'Nothing found so far' : 'No kept event matches'} text={next ? 'The search looked at as many events as one page may.' : 'Widen the range of time or change the filter.'} />
      ) : null}
      {events.length > 0 ? (
        <div className={css.box} data-kind={heads.length} data-dated={!isToday(rising[0]?.event_timestamp ?? '')}>
          <div className={css.head} aria-hidden="true">{heads.map((head) => <span key={head}>{head}</span>)}</div>
          <LiveList label={title} events={rising} selected={selected?.event_id} onSelect={(event) => setSelected(event as KeptEvent)} onAway={stay} row={row} />
        </div>
      ) : null}
      {found.data ? (
        <div className={ui.pager}>
          <Button variant="default" size="xs" disabled={!search.cursor} onClick={() => onSearch({ ...search, cursor: undefined })}>Newest</Button>
          <Button variant="default" size="xs" disabled={!next} onClick={() => onSearch({ ...search, cursor: next })}>{events.length > 0 ? 'Older' : 'Search further'}</Button>
        </div>
      ) : null}
      <Drawer opened={selected !== undefined} onClose={() => setSelected(undefined)} title="Event" size="lg" withOverlay={false} trapFocus={false} closeOnClickOutside={false} returnFocus={false}>
        {selected ? <EventDetail event={selected} /> : null}
      </Drawer>
    </Page>
  );
}
