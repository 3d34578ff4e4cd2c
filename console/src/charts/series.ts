import type { Statistics, StatisticsPoint } from '../../generated/api';
import type { Line } from './plot';

export type Read = (point: StatisticsPoint, seconds: number) => number | null;

export interface LineOf {
  label: string;
  color: string;
  read: Read;
}

export interface Drawn {
  times: number[];
  lines: Line[];
}

/** The lines of a chart. A step without anything counted is 0 for counts, and a gap for what is only known of something. */
export function draw(
  statistics: Statistics,
  lines: LineOf[],
  gaps: boolean,
): Drawn {
  const from = Date.parse(statistics.from) / 1000;
  const to = Math.min(Date.parse(statistics.to) / 1000, Date.now() / 1000);
  const points = new Map(
    statistics.points.map((point) => [Date.parse(point.at) / 1000, point]),
  );
  const times: number[] = [];
  const values: (number | null)[][] = lines.map(() => []);
  // The last step is not over.
  for (let at = from; at + statistics.step <= to; at += statistics.step) {
    const point = points.get(at);
    times.push(at);
    lines.forEach(({ read }, index) =>
      values[index]?.push(
        point ? read(point, statistics.step) : gaps ? null : 0,
      ),
    );
  }
  return {
    times,
    lines: lines.map(({ label, color }, index) => ({
      label,
      color,
      values: values[index] ?? [],
    })),
  };
}
