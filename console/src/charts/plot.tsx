import { type PointerEvent, memo, useMemo } from 'react';
import css from './charts.module.css';
import { type Unit, show, ticks } from './units';

export interface Line {
  label: string;
  color: string;
  values: (number | null)[];
}

interface Props {
  /** Starts of the steps, in seconds. */
  times: number[];
  lines: Line[];
  unit: Unit;
  /** The step under the pointer. */
  at: number | null;
  onAt: (index: number | null) => void;
}

const WIDTH = 1000;
const HEIGHT = 150;
/** Marks of time below a chart. */
const MARKS = 4;
const DAY = 86_400;

/** A path over all values, where a gap begins a new piece; and the values with a gap on both sides, as dots. */
function paths(
  values: (number | null)[],
  top: number,
): { line: string; dots: string } {
  const width = WIDTH / Math.max(1, values.length - 1);
  const has = (index: number) => typeof values[index] === 'number';
  let line = '';
  let dots = '';
  values.forEach((value, index) => {
    if (value === null) return;
    const at = `${(index * width).toFixed(1)} ${(HEIGHT - (Math.min(value, top) / top) * HEIGHT).toFixed(1)}`;
    if (has(index - 1)) line += `L${at}`;
    else if (has(index + 1)) line += `M${at}`;
    else dots += `M${at}h0.01`;
  });
  return { line, dots };
}

const Lines = memo(function Lines({
  lines,
  top,
  count,
}: {
  lines: Line[];
  top: number;
  count: number;
}) {
  return (
    <>
      {Array.from({ length: count }, (_, index) => (
        <line
          key={index}
          x1="0"
          x2={WIDTH}
          y1={(index / count) * HEIGHT}
          y2={(index / count) * HEIGHT}
          className={css.grid}
        />
      ))}
      {lines.map(({ label, color, values }) => {
        const { line, dots } = paths(values, top);
        return (
          <g key={label}>
            <path d={line} data-color={color} />
            {dots ? (
              <path d={dots} data-color={color} className={css.dots} />
            ) : null}
          </g>
        );
      })}
    </>
  );
});

/** The drawing of a chart. Its size and colours are those of the style sheet, so it follows the page and the theme by itself. */
export function Plot({ times, lines, unit, at, onAt }: Props) {
  const most = useMemo(
    () =>
      lines.reduce(
        (sum, { values }) =>
          values.reduce<number>((max, value) => Math.max(max, value ?? 0), sum),
        0,
      ),
    [lines],
  );
  const marks = ticks(most, unit);
  const top = marks[0] ?? 1;
  const from = times[0] ?? 0;
  const to = times.at(-1) ?? from;
  const long = to - from > DAY;
  const clock = (time: number) =>
    new Date(time * 1000).toLocaleString(
      undefined,
      long
        ? { day: 'numeric', month: 'short', hour: '2-digit' }
        : { hour: '2-digit', minute: '2-digit' },
    );
  const move = (event: PointerEvent<SVGSVGElement>) => {
    const { left, width } = event.currentTarget.getBoundingClientRect();
    const share = width === 0 ? 0 : (event.clientX - left) / width;
    onAt(
      Math.min(
        times.length - 1,
        Math.max(0, Math.round(share * (times.length - 1))),
      ),
    );
  };
  const x = at === null ? null : (at / Math.max(1, times.length - 1)) * WIDTH;
  return (
    <div className={css.plot} aria-hidden="true">
      <div className={css.marks}>
        {marks.map((mark) => (
          <span key={mark}>{show(mark, unit)}</span>
        ))}
      </div>
      <svg
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        onPointerMove={move}
        onPointerLeave={() => onAt(null)}
      >
        <Lines lines={lines} top={top} count={marks.length - 1} />
        {x === null ? null : (
          <line x1={x} x2={x} y1="0" y2={HEIGHT} className={css.pointer} />
        )}
      </svg>
      <div className={css.times}>
        {Array.from({ length: MARKS + 1 }, (_, index) => (
          <span key={index}>{clock(from + ((to - from) * index) / MARKS)}</span>
        ))}
      </div>
    </div>
  );
}
