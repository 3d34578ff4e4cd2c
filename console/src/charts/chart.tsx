import { Suspense, lazy, useCallback, useState } from 'react';
import { Loading } from '@/ui/states';
import css from './charts.module.css';
import type { Line } from './plot';
import { type Unit, show } from './units';

const Plot = lazy(() => import('./plot'));

interface Props {
  title: string;
  times: number[];
  lines: Line[];
  unit: Unit;
  group: string;
}

const last = (values: (number | null)[]): number | null => values.findLast((value) => value !== null) ?? null;

/** Lines over time, with the values under the pointer, or the last ones, as text. */
export function Chart({ title, times, lines, unit, group }: Props) {
  const [at, setAt] = useState<number | null>(null);
  const onPoint = useCallback((index: number | null) => setAt(index), []);
  const time = at === null ? undefined : times[at];
  const shown = lines.map(({ label, color, values }) => {
    const value = at === null ? last(values) : (values[at] ?? null);
    return { label, color, text: value === null ? '–' : show(value, unit) };
  });
  const summary = `${title}: ${shown.map(({ label, text }) => `${label} ${text}`).join(', ')}`;
  return (
    <figure className={css.chart}>
      <figcaption>
        <b>{title}</b>
        <span className={css.time}>{time === undefined ? '' : new Date(time * 1000).toLocaleString()}</span>
      </figcaption>
      <ul className={css.legend}>
        {shown.map(({ label, color, text }) => (
          <li key={label}><i data-color={color} />{label} <b>{text}</b></li>
        ))}
      </ul>
      <div role="img" aria-label={summary}>
        <Suspense fallback={<Loading label="Loading the chart" />}><Plot times={times} lines={lines} unit={unit} group={group} onPoint={onPoint} /></Suspense>
      </div>
    </figure>
  );
}
