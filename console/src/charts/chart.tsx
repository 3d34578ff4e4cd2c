import css from './charts.module.css';
import { type Line, Plot } from './plot';
import { type Unit, show } from './units';

interface Props {
  title: string;
  times: number[];
  lines: Line[];
  unit: Unit;
  /** The step under the pointer, in this chart or in one beside it. */
  at: number | null;
  onAt: (index: number | null) => void;
}

const last = (values: (number | null)[]): number | null =>
  values.findLast((value) => value !== null) ?? null;

/** Lines over time, with the values under the pointer, or the last ones, as text. */
export function Chart({ title, times, lines, unit, at, onAt }: Props) {
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
        <span className={css.time}>
          {time === undefined ? '' : new Date(time * 1000).toLocaleString()}
        </span>
      </figcaption>
      <ul className={css.legend}>
        {shown.map(({ label, color, text }) => (
          <li key={label}>
            <i data-color={color} />
            {label} <b>{text}</b>
          </li>
        ))}
      </ul>
      <div role="img" aria-label={summary}>
        <Plot times={times} lines={lines} unit={unit} at={at} onAt={onAt} />
      </div>
    </figure>
  );
}
