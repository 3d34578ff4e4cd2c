import { useInfiniteQuery, useQueryClient } from '@tanstack/react-query';
import { useCallback, useEffect, useMemo, useRef, useState } from 'react';
import { ApiError } from '@/api/error';
import type { LiveEvent } from './entry';
import { type Conditions, keptQuery, type Searched } from './kept';
import { NOT_KEPT, type Tail } from './tail';
import { useTail } from './use-tail';

/** What fits onto a screen: so many events are searched for without being asked. */
const SCREEN = 40;
/** What is read ahead of a person who scrolls. */
const MORE = 100;
/** The events of the logs are read once the stream has begun, so that none falls between. It is not waited for longer. */
const PATIENCE_MS = 1500;
/** Nodes write traffic once a second, so the order of the logs and that of the times differ by so much. */
const SKEW_MS = 5000;

export interface Timeline {
  /** The oldest first. */
  events: LiveEvent[];
  tail: Tail;
  /** Whether new events arrive: not in a search of a time that is over. */
  isLive: boolean;
  /** Whether this server keeps the events. */
  isKept: boolean;
  isPending: boolean;
  error: Error | undefined;
  retry: () => void;
  /** How far the logs are searched. */
  searched: Searched | undefined;
  isSearching: boolean;
  isStopped: boolean;
  /** Whether all events are here. */
  isWhole: boolean;
  stop: () => void;
  goOn: () => void;
  /** Asks for older events. */
  more: () => void;
  isPaused: boolean;
  pause: () => void;
  /** How many arrived since the list stands still. */
  newer: number;
  /** Whether the person reads further down, so that nothing may move. */
  setAway: (away: boolean) => void;
}

interface Held {
  events: LiveEvent[];
  isOver: boolean;
  n: number;
}

const holdOf = (tail: Tail): Held => ({
  events: tail.events,
  isOver: tail.isOver,
  n: tail.total,
});

/** What the list shows of the stream: all, or what was there when it was stopped. */
function useHold(tail: Tail) {
  const [isPaused, setPaused] = useState(false);
  const [held, setHeld] = useState<Held>();
  return {
    isPaused,
    held,
    pause: () => {
      setPaused(!isPaused);
      setHeld(isPaused ? undefined : holdOf(tail));
    },
    setAway: (away: boolean) => {
      if (away) setHeld((now) => now ?? holdOf(tail));
      else if (!isPaused) setHeld(undefined);
    },
  };
}

/**
 * The events that match, of the logs and as they happen. The stream begins first and the logs are read then, so that no event
 * is missing between them; one that comes from both is shown once.
 */
export function useTimeline(
  conditions: Conditions,
  shows: (event: LiveEvent) => boolean,
): Timeline {
  const { to, from: _, ...followed } = conditions;
  const isLive = to === undefined;
  const tail = useTail({ ...followed, resumes: true, isOff: !isLive });
  const hold = useHold(tail);
  const source = hold.held ?? holdOf(tail);
  /** If the stream has more than it holds, older ones are read from where it begins. */
  const [until, setUntil] = useState<string>();
  const isBegun = useBegin(isLive, tail.state);
  const query = keptQuery({ ...conditions, to: until ?? to });
  const found = useInfiniteQuery({
    ...query,
    enabled: isBegun && (!source.isOver || until !== undefined),
  });
  useRead(tail, isBegun, query.queryKey);
  useEffect(() => {
    if (!hold.held) setUntil(undefined);
  }, [hold.held]);

  const kept = useMemo(() => {
    const rising = (found.data?.pages ?? [])
      .flatMap(({ events }) => events)
      .toReversed();
    return { rising, ids: new Set(rising.map((event) => event.event_id)) };
  }, [found.data]);
  const isJoined = !source.isOver || until !== undefined;
  const streamed = source.events;
  const events = useMemo(() => {
    const rising = isJoined
      ? [
          ...kept.rising,
          ...streamed.filter((event) => !kept.ids.has(event.event_id)),
        ]
      : streamed;
    return rising.filter(shows);
  }, [kept, streamed, isJoined, shows]);

  const [wanted, setWanted] = useState(SCREEN);
  const [isStopped, setStopped] = useState(false);
  const { hasNextPage, isFetching, isFetchNextPageError, fetchNextPage } =
    found;
  const isSearching =
    isFetching || (hasNextPage && events.length < wanted && !isStopped);
  useEffect(() => {
    if (
      hasNextPage &&
      events.length < wanted &&
      !isStopped &&
      !isFetching &&
      !isFetchNextPageError
    )
      void fetchNextPage();
  });
  const isNotKept =
    found.error instanceof ApiError && found.error.code === NOT_KEPT;
  const first = streamed[0];
  return {
    events,
    tail,
    isLive,
    isKept: !isNotKept,
    isPending: isBegun ? found.isLoading : tail.error === undefined,
    error: isNotKept ? tail.error : (found.error ?? tail.error ?? undefined),
    retry: () =>
      void (isFetchNextPageError ? fetchNextPage() : found.refetch()),
    searched: found.data?.pages.at(-1)?.searched,
    isSearching,
    isStopped,
    isWhole: isNotKept || (isJoined && found.isSuccess && !hasNextPage),
    stop: () => setStopped(true),
    goOn: () => {
      setStopped(false);
      setWanted(events.length + MORE);
    },
    more: () => {
      if (!isJoined && first)
        setUntil(
          new Date(Date.parse(first.event_timestamp) + SKEW_MS).toISOString(),
        );
      setWanted(events.length + MORE);
    },
    isPaused: hold.isPaused,
    pause: hold.pause,
    newer: hold.held
      ? tail.events.filter((event) => event.n > source.n && shows(event)).length
      : 0,
    setAway: hold.setAway,
  };
}

/** Whether the logs may be read: the stream has begun, or takes its time. */
function useBegin(isLive: boolean, state: Tail['state']): boolean {
  const [isLate, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), PATIENCE_MS);
    return () => clearTimeout(timer);
  }, []);
  const isReady = !isLive || state !== 'connecting' || isLate;
  // What has begun once stays so.
  const began = useRef(false);
  began.current ||= isReady;
  return began.current;
}

/** Reads the logs again when the stream began after them, or went on with a gap: then all is there again. */
function useRead(tail: Tail, isBegun: boolean, key: readonly unknown[]): void {
  const client = useQueryClient();
  const isStale = useRef(false);
  const wasLive = useRef(false);
  if (isBegun && !wasLive.current && tail.state !== 'live')
    isStale.current = true;
  const again = useCallback(() => {
    tail.forget();
    void client.resetQueries({ queryKey: key });
    // The key names the same search for as long as the list is there.
    // oxlint-disable-next-line react/exhaustive-deps
  }, [tail, client]);
  const gap = tail.cut?.hasGap && tail.cut.isKept ? tail.cut.to : undefined;
  useEffect(() => {
    if (gap) again();
  }, [gap, again]);
  const isConnected = tail.state === 'live';
  useEffect(() => {
    if (!isConnected) return;
    wasLive.current = true;
    if (isStale.current) again();
    isStale.current = false;
  }, [isConnected, again]);
}
