import css from './ui.module.css';

const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' });
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit', fractionalSecondDigits: 3, hour12: false });
const AGO = new Intl.RelativeTimeFormat(undefined, { numeric: 'auto' });
const STEPS: [Intl.RelativeTimeFormatUnit, number][] = [['day', 86_400], ['hour', 3600], ['minute', 60], ['second', 1]];

function ago(date: Date): string {
  const seconds = (date.getTime() - Date.now()) / 1000;
  if (Math.abs(seconds) < 5) return 'just now';
  for (const [unit, length] of STEPS) {
    if (Math.abs(seconds) >= length) return AGO.format(Math.round(seconds / length), unit);
  }
  return '';
}

/** A time of the viewer's place; UTC on hover. */
export function Time({ value, relative = false }: { value: string; relative?: boolean }) {
  const date = new Date(value);
  if (Number.isNaN(date.getTime())) return <>{value}</>;
  const utc = date.toISOString().replace('T', ' ').replace('Z', ' UTC');
  return (
    <time dateTime={value} title={relative ? `${FULL.format(date)}\n${utc}` : utc} className={css.time}>
      {relative ? ago(date) : FULL.format(date)}
    </time>
  );
}

/** Hours to milliseconds, for rows of a live list. */
export function clock(value: string): string {
  return CLOCK.format(new Date(value));
}
