import { Drawer } from '@mantine/core';
import { useQuery, useQueryClient } from '@tanstack/react-query';
import { type ReactNode, useCallback, useMemo, useState } from 'react';
import type { Json } from '@/api/json';
import { counted } from '@/api/words';
import { Button } from '@/ui/button';
import { type Column, Export } from '@/ui/export';
import { Icon } from '@/ui/icons';
import { Page, Tag } from '@/ui/page';
import { Empty, Failure, Loading } from '@/ui/states';
import { clock, isToday, Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import type { KeptEvent, LiveEvent } from './entry';
import { EventDetail } from './event-detail';
import { type Conditions, type EventSearch, keptPage } from './kept';
import { LiveList } from './live-list';
import { Narrow, type Value } from './narrow';
import { SearchBox } from './search-box';
import type { Cut, TailState } from './tail';
import { both, conditionsOf, narrowed, termsQuery } from './terms';
import { type Timeline as Found, useTimeline } from './use-timeline';
import css from './live.module.css';

const STATES: Record<
  TailState,
  { tone: 'ok' | 'warn' | 'bad' | 'accent'; word: string }
> = {
  connecting: { tone: 'accent', word: 'Connecting' },
  live: { tone: 'ok', word: 'Live' },
  waiting: { tone: 'warn', word: 'Connecting again' },
  refused: { tone: 'bad', word: 'Refused' },
};

const at = (date: Date) => clock(date.toISOString()).split('.')[0];

/** The last interruption: since when, and whether the events of that time came after it. */
function CutTag({ cut }: { cut: Cut }) {
  const say = (tone: string, text: string) => (
    <span role="status" className={css.cut} data-tone={tone}>
      {text}
    </span>
  );
  if (!cut.to) return say('bad', `Cut off since ${at(cut.from)}`);
  const span = `Cut off from ${at(cut.from)} to ${at(cut.to)}`;
  if (cut.hasGap)
    return cut.isKept
      ? say('ok', `${span}. Events of that time were read from the log.`)
      : say(
          'warn',
          `${span}. Events of that time are missing: this server keeps none.`,
        );
  return say(
    'ok',
    `${span}, then resumed without a gap. ${counted(cut.recovered, 'event')} recovered.`,
  );
}

/** How far the search is, and what stops it or lets it go on. */
function Progress({ found }: { found: Found }) {
  const { searched, isSearching, isStopped, isWhole, events } = found;
  const share = searched ? `${Math.floor(searched.share * 100)} %` : '';
  const back = searched?.to ? (
    <>
      Searched back to <Time value={searched.to} />, {share}
    </>
  ) : (
    'Searching'
  );
  if (isWhole)
    return events.length === 0 || !found.isKept ? null : (
      <span className={ui.dim}>
        {events.length === 1
          ? 'The only event that matches.'
          : `All ${counted(events.length, 'event')} that match are loaded.`}
      </span>
    );
  if (isSearching && !found.isPending)
    return (
      <>
        <span className={ui.dim}>{back}</span>
        {searched ? (
          <progress max={1} value={searched.share} aria-label="Searched" />
        ) : null}
        <Button size="xs" variant="default" onClick={found.stop}>
          Stop
        </Button>
      </>
    );
  if (isStopped)
    return (
      <>
        <span className={ui.dim}>Stopped. {back}.</span>
        <Button size="xs" variant="default" onClick={found.goOn}>
          Continue
        </Button>
      </>
    );
  return (
    <span className={ui.dim}>
      {counted(events.length, 'event')} loaded. Older ones follow as you scroll.
    </span>
  );
}

interface ListProps {
  title: string;
  conditions: Conditions;
  isNarrowed: boolean;
  heads: string[];
  row: (event: LiveEvent) => ReactNode;
  shows: (event: LiveEvent) => boolean;
  /** The columns of an export as CSV. */
  columns: Column<KeptEvent>[];
  empty: { title: string; text: string; command?: string };
}

/** The events of a search. */
function Events({
  title,
  conditions,
  isNarrowed,
  heads,
  row,
  shows,
  columns,
  empty,
}: ListProps) {
  const found = useTimeline(conditions, shows);
  const { events, tail, isLive, isPaused, newer } = found;
  const [selected, setSelected] = useState<LiveEvent>();
  const [jumps, setJumps] = useState(0);
  const state = STATES[tail.state];
  const toTop = () => {
    if (isPaused) found.pause();
    setJumps(jumps + 1);
  };
  return (
    <>
      <div className={css.bar}>
        {isLive ? (
          <Tag tone={isPaused ? 'warn' : state.tone}>
            {isPaused ? 'Paused' : state.word}
          </Tag>
        ) : (
          <Tag>Of a time that is over</Tag>
        )}
        <span className={ui.dim}>{events.length.toLocaleString()} shown</span>
        {tail.dropped > 0 ? (
          <Tag tone="warn">{tail.dropped.toLocaleString()} dropped</Tag>
        ) : null}
        {tail.cut ? <CutTag cut={tail.cut} /> : null}
        {newer > 0 ? (
          <Button size="compact-xs" variant="light" onClick={toTop}>
            {newer.toLocaleString()} newer
          </Button>
        ) : null}
        <span className={css.space} />
        {isLive ? (
          <Button
            size="xs"
            variant="default"
            leftSection={<Icon name={isPaused ? 'play' : 'pause'} size={14} />}
            onClick={found.pause}
          >
            {isPaused ? 'Go on' : 'Pause'}
          </Button>
        ) : null}
        {found.isKept ? (
          <Export
            name={title.toLowerCase()}
            columns={columns}
            whole={(event) => event as unknown as Json}
            page={async (cursor, signal) => {
              const { events: rows, next } = await keptPage(
                conditions,
                cursor,
                signal,
              );
              return { rows: rows.filter(shows), next };
            }}
          />
        ) : null}
      </div>
      {found.isKept ? null : (
        <p className={css.note}>
          This server keeps no traffic (<code>events.traffic_retention</code>):
          the page shows what passes while it is open.
        </p>
      )}
      {found.error ? <Failure error={found.error} retry={found.retry} /> : null}
      {events.length > 0 ? (
        <div
          className={css.box}
          data-kind={heads.length}
          data-dated={!isToday(events[0]?.event_timestamp ?? '')}
        >
          <div className={css.head} aria-hidden="true">
            {heads.map((head) => (
              <span key={head}>{head}</span>
            ))}
          </div>
          <LiveList
            label={title}
            events={events}
            selected={selected?.event_id}
            onSelect={setSelected}
            onAway={found.setAway}
            row={row}
            onEnd={found.isWhole || found.isStopped ? undefined : found.more}
            isWhole={found.isWhole}
            jumps={jumps}
          />
        </div>
      ) : found.isPending ? (
        <Loading />
      ) : found.error || !found.isWhole ? null : (
        <Empty
          {...(isNarrowed
            ? {
                title: 'No event matches',
                text: 'All that is kept was searched. Remove a word, or widen the time.',
              }
            : empty)}
        />
      )}
      <div className={ui.pager}>
        <Progress found={found} />
      </div>
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
    </>
  );
}

interface Props extends Omit<ListProps, 'conditions' | 'isNarrowed'> {
  text: string;
  placeholder: string;
  /** The types of the page's events. */
  all: string[];
  search: EventSearch;
  onSearch: (search: EventSearch) => void;
  below?: ReactNode;
}

/** Events of a log in one list: those that are kept, newest first, and above them new ones as they happen. */
export function Timeline({
  text,
  placeholder,
  all,
  search,
  onSearch,
  below,
  ...list
}: Props) {
  const client = useQueryClient();
  const terms = useQuery(termsQuery(search.q ?? ''));
  /** A search may be started again with the words that it has. */
  const [run, setRun] = useState(0);
  const given = terms.data;
  const conditions = useMemo(
    () =>
      given && !given.error ? conditionsOf(search, given, all) : undefined,
    [search, given, all],
  );
  const go = (next: EventSearch) => {
    setRun(run + 1);
    void client.resetQueries({
      queryKey: termsQuery(next.q ?? '').queryKey,
    });
    onSearch(next);
  };
  const narrow = useCallback(
    ({ facet, word, cel }: Value) => {
      if (cel) onSearch({ ...search, filter: both(search.filter, cel) });
      else if (given) onSearch({ ...search, q: narrowed(given, facet, word) });
    },
    [given, search, onSearch],
  );
  const isNarrowed = Object.values(search).some(Boolean);
  return (
    <Page title={list.title} text={text}>
      <SearchBox search={search} placeholder={placeholder} onSearch={go} />
      {terms.error ? (
        <Failure error={terms.error} retry={() => void terms.refetch()} />
      ) : null}
      <Narrow value={narrow}>
        {conditions ? (
          <Events
            key={`${run} ${JSON.stringify(conditions)}`}
            conditions={conditions}
            isNarrowed={isNarrowed}
            {...list}
          />
        ) : terms.isPending ? (
          <Loading />
        ) : null}
      </Narrow>
      {below}
    </Page>
  );
}
