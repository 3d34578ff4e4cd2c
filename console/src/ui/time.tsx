import css from './ui.module.css';

const FULL = new Intl.DateTimeFormat(undefined, {
  dateStyle: 'medium',
  timeStyle: 'medium',
});
const CLOCK = new Intl.DateTimeFormat(undefined, {
  hour: '2-digit',
  minute: '2-digit',
  second: '2-digit',
  fractionalSecondDigits: 3,
  hour12: false,
});
const AGO = new Intl.RelativeTimeFormat(undefined, { numeric: 'auto' });
const STEPS: [Intl.RelativeTimeFormatUnit, number][] = [
  ['day', 86_400],
  ['hour', 3600],
  ['minute', 60],
  ['second', 1],
];

function ago(date: Date): string {
  const seconds = (date.getTime() - Date.now()) / 1000;
  if (Math.abs(seconds) < 5) return 'just now';
  for (const [unit, length] of STEPS) {
    if (Math.abs(seconds) >= length)
      return AGO.format(Math.round(seconds / length), unit);
  }
  return '';
}

/** A time of the viewer's place; UTC on hover. */
export function Time({
  value,
  relative = false,
}: {
  value: string;
  relative?: boolean;
}) {
  const date = new Date(value);
  if (Number.isNaN(date.getTime())) return <>{value}</>;
  const utc = date.toISOString().replace('T', ' ').replace('Z', ' UTC');
  return (
    <time
      dateTime={value}
      title={relative ? `${FULL.format(date)}\n${utc}` : utc}
      className={css.time}
    >
      {relative ? ago(date) : FULL.format(date)}
    </time>
  );
}

const DAY = new Intl.DateTimeFormat(undefined, {
  day: 'numeric',
  month: 'short',
});

/** Hours to milliseconds, for rows of a list. */
export function clock(value: string): string {
  return CLOCK.format(new Date(value));
}

export function isToday(value: string): boolean {
  return new Date(value).toDateString() === new Date().toDateString();
}

/** The time of a row: with its day if that is not today. A narrow page leaves out the milliseconds. */
export function RowTime({ value }: { value: string }) {
  const [whole, part] = clock(value).split('.');
  return (
    <time
      dateTime={value}
      title={new Date(value)
        .toISOString()
        .replace('T', ' ')
        .replace('Z', ' UTC')}
    >
      {isToday(value) ? '' : `${DAY.format(new Date(value))} `}
      {whole}
      <span className={css.part}>.{part}</span>
    </time>
  );
}
