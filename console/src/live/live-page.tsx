import { Button, Drawer } from '@mantine/core';
import { type ReactNode, useMemo, useState } from 'react';
import { counted } from '@/api/words';
import { Icon } from '@/ui/icons';
import { Page, Tag } from '@/ui/page';
import { Empty, Failure } from '@/ui/states';
import { clock } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import { EventDetail } from './event-detail';
import { LiveList } from './live-list';
import type { LiveEvent } from './entry';
import type { Cut, Tail, TailState } from './tail';
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
    return say(
      'warn',
      cut.isKept
        ? `${span}. Events of that time are under “Kept”.`
        : `${span}. Events of that time are missing: this server keeps none.`,
    );
  return say(
    'ok',
    `${span}, then resumed without a gap. ${counted(cut.recovered, 'event')} recovered.`,
  );
}

interface Props {
  title: string;
  text: string;
  tail: Tail;
  /** The choice between live and kept events. */
  views: ReactNode;
  tools: ReactNode;
  heads: string[];
  row: (event: LiveEvent) => ReactNode;
  /** Which of the events are shown. */
  keep?: ((event: LiveEvent) => boolean) | undefined;
  empty: { title: string; text: string; command?: string };
}

/** A page that follows events: pause, clear, a list that scrolls, and the chosen event at the side. */
export function LivePage({
  title,
  text,
  tail,
  views,
  tools,
  heads,
  row,
  keep,
  empty,
}: Props) {
  const [paused, setPaused] = useState(false);
  const [selected, setSelected] = useState<LiveEvent>();
  /** What stays in view while the person reads further down or has paused. */
  const [held, setHeld] = useState<LiveEvent[]>();
  const source = held ?? tail.events;
  const events = useMemo(
    () => (keep ? source.filter(keep) : source),
    [source, keep],
  );
  const newer = held ? tail.total - (held.at(-1)?.n ?? tail.total) : 0;
  const pause = () => {
    setPaused(!paused);
    setHeld(paused ? undefined : tail.events);
  };
  const onAway = (away: boolean) => {
    if (away) setHeld((now) => now ?? tail.events);
    else if (!paused) setHeld(undefined);
  };
  const state = STATES[tail.state];
  const clear = () => {
    tail.clear();
    setHeld(paused ? [] : undefined);
  };
  return (
    <Page title={title} text={text}>
      {views}
      {tools}
      <div className={css.bar}>
        <Tag tone={paused ? 'warn' : state.tone}>
          {paused ? 'Paused' : state.word}
        </Tag>
        <span className={ui.dim}>{events.length.toLocaleString()} shown</span>
        {tail.dropped > 0 ? (
          <Tag tone="warn">{tail.dropped.toLocaleString()} dropped</Tag>
        ) : null}
        {tail.cut ? <CutTag cut={tail.cut} /> : null}
        {newer > 0 ? (
          <span className={ui.dim}>{newer.toLocaleString()} newer</span>
        ) : null}
        <span className={css.space} />
        <Button
          size="xs"
          variant="default"
          leftSection={<Icon name={paused ? 'play' : 'pause'} size={14} />}
          onClick={pause}
        >
          {paused ? 'Go on' : 'Pause'}
        </Button>
        <Button size="xs" variant="default" onClick={clear}>
          Clear
        </Button>
      </div>
      {tail.error ? <Failure error={tail.error} /> : null}
      <div className={css.box} data-kind={heads.length}>
        <div className={css.head} aria-hidden="true">
          {heads.map((head) => (
            <span key={head}>{head}</span>
          ))}
        </div>
        {events.length === 0 && !tail.error ? (
          <Empty {...empty} />
        ) : (
          <LiveList
            label={title}
            events={events}
            selected={selected?.event_id}
            onSelect={setSelected}
            onAway={onAway}
            row={row}
          />
        )}
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
    </Page>
  );
}
