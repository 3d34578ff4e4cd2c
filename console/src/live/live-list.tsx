import { useMediaQuery } from '@mantine/hooks';
import { useVirtualizer } from '@tanstack/react-virtual';
import {
  type CSSProperties,
  type KeyboardEvent,
  type ReactNode,
  useEffect,
  useRef,
} from 'react';
import type { LiveEvent } from './entry';
import css from './live.module.css';

const ROW = 34;
/** On a narrow screen a row has two lines, so that no column is missing. */
const NARROW = '(max-width: 760px)';
const NARROW_ROW = 54;

interface Props {
  label: string;
  events: LiveEvent[];
  selected: string | undefined;
  onSelect: (event: LiveEvent) => void;
  /** Whether the person reads further down, so that nothing may move. */
  onAway: (away: boolean) => void;
  row: (event: LiveEvent) => ReactNode;
  /** Called when the last rows come into sight, if there are more. */
  onEnd?: (() => void) | undefined;
  /** Whether these are all events: their number is then known. */
  isWhole?: boolean;
  /** How often the person has asked to go to the newest. */
  jumps?: number;
}

/** Rows before the end at which more are asked for. */
const AHEAD = 60;

/** Events, the newest on top. Only the rows that are seen are in the page. */
export function LiveList({
  label,
  events,
  selected,
  onSelect,
  onAway,
  row,
  onEnd,
  isWhole = true,
  jumps = 0,
}: Props) {
  const box = useRef<HTMLDivElement>(null);
  const isNarrow = useMediaQuery(NARROW, false, {
    getInitialValueInEffect: false,
  });
  const height = isNarrow ? NARROW_ROW : ROW;
  const virtual = useVirtualizer({
    count: events.length,
    getScrollElement: () => box.current,
    estimateSize: () => height,
    overscan: 20,
  });
  useEffect(() => virtual.measure(), [virtual, height]);
  const last = events.length - 1;
  const at = events.findIndex((event) => event.event_id === selected);
  useEffect(() => {
    if (at >= 0) virtual.scrollToIndex(last - at, { align: 'auto' });
    // Only a new selection moves the list.
    // oxlint-disable-next-line react/exhaustive-deps
  }, [selected]);
  useEffect(() => {
    if (jumps > 0) box.current?.scrollTo(0, 0);
  }, [jumps]);
  const isNearEnd =
    onEnd !== undefined &&
    (virtual.getVirtualItems().at(-1)?.index ?? 0) >= events.length - AHEAD;
  useEffect(() => {
    if (isNearEnd) onEnd?.();
    // Each page that arrives asks again.
    // oxlint-disable-next-line react/exhaustive-deps
  }, [isNearEnd, events.length]);
  const onKey = (event: KeyboardEvent) => {
    const step =
      event.key === 'ArrowDown' ? -1 : event.key === 'ArrowUp' ? 1 : 0;
    if (step === 0) return;
    event.preventDefault();
    const next = events[at < 0 ? last : Math.min(Math.max(at + step, 0), last)];
    if (next) onSelect(next);
  };
  return (
    <div
      ref={box}
      className={css.list}
      style={{ '--rows': `${events.length * height}px` } as CSSProperties}
      role="listbox"
      aria-label={label}
      tabIndex={0}
      onKeyDown={onKey}
      aria-activedescendant={
        selected && at >= 0 ? `event-${selected}` : undefined
      }
      onScroll={(event) => onAway(event.currentTarget.scrollTop > height)}
    >
      <div
        style={{ height: virtual.getTotalSize() }}
        className={css.inner}
        role="presentation"
      >
        {virtual.getVirtualItems().map(({ index, start }) => {
          const event = events[last - index];
          return event ? (
            <div
              key={event.event_id}
              id={`event-${event.event_id}`}
              className={css.row}
              style={{ transform: `translateY(${start}px)` }}
              role="option"
              tabIndex={-1}
              aria-selected={event.event_id === selected}
              aria-setsize={isWhole ? events.length : -1}
              aria-posinset={index + 1}
              onClick={() => onSelect(event)}
              onKeyDown={onKey}
            >
              {row(event)}
            </div>
          ) : null;
        })}
      </div>
    </div>
  );
}
