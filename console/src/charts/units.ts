/** How numbers of charts are written. */
export type Unit = 'rate' | 'share' | 'ms' | 'bytes' | 'count';

const number = (value: number, digits: number): string =>
  value.toLocaleString(undefined, { maximumFractionDigits: digits });

const scaled = (value: number, base: number, units: string[]): string => {
  let left = value;
  let at = 0;
  while (left >= base && at < units.length - 1) {
    left /= base;
    at += 1;
  }
  return `${number(left, left < 10 ? 1 : 0)} ${units[at]}`;
};

export function show(value: number, unit: Unit): string {
  switch (unit) {
    case 'rate':
      return value > 0 && value < 0.005
        ? '< 0.01'
        : number(value, value < 10 ? 2 : 0);
    case 'share':
      return `${number(value * 100, 1)} %`;
    case 'ms':
      return value < 1000
        ? `${number(value, value < 10 ? 1 : 0)} ms`
        : `${number(value / 1000, 1)} s`;
    case 'bytes':
      return scaled(value, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB']);
    case 'count':
      return number(value, value < 10 ? 1 : 0);
  }
}

/** At most this many lines above zero. */
const LINES = 4;

/** The values of horizontal lines, evenly spaced from a round one above the highest value down to zero. */
export function ticks(most: number, unit: Unit): number[] {
  if (!(most > 0)) return [1, 0];
  const base = unit === 'bytes' ? 1024 ** Math.floor(Math.log2(most) / 10) : 1;
  const rough = most / base / LINES;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step =
    ([1, 2, 2.5, 5].find((one) => one * power >= rough) ?? 10) * power * base;
  const count = Math.max(1, Math.ceil(most / step - 1e-9));
  return Array.from(
    { length: count + 1 },
    (_, index) => (count - index) * step,
  );
}
