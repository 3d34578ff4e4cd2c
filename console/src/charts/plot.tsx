import { useEffect, useRef } from 'react';
import UPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { type Unit, show } from './units';

export interface Line {
  label: string;
  color: string;
  values: (number | null)[];
}

export interface PlotProps {
  /** Starts of the steps, in seconds. */
  times: number[];
  lines: Line[];
  unit: Unit;
  /** Charts with the same key show the pointer at the same time. */
  group: string;
  onPoint: (index: number | null) => void;
}

const HEIGHT = 150;

const style = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The canvas of a chart. It follows the width of its box and the theme. */
export default function Plot({ times, lines, unit, group, onPoint }: PlotProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<UPlot>(undefined);
  const data = useRef<UPlot.AlignedData>([[]]);
  data.current = [times, ...lines.map(({ values }) => values)];
  const shape = lines.map(({ label, color }) => `${label} ${color}`).join();
  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const make = () => {
      plot.current?.destroy();
      const axis = { stroke: style('--mantine-color-dimmed'), grid: { stroke: style('--line'), width: 1 }, ticks: { show: false } };
      plot.current = new UPlot({
        width: Math.max(element.clientWidth, 120),
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, sync: { key: group } },
        scales: { y: { range: (_, __, most) => [0, most > 0 ? most * 1.05 : 1] } },
        axes: [axis, { ...axis, size: 64, values: (_, splits) => splits.map((value) => show(value, unit)) }],
        series: [{}, ...lines.map(({ label, color }) => ({ label, stroke: style(color) || color, width: 1.5, points: { show: false } }))],
        hooks: { setCursor: [(self) => onPoint(self.cursor.idx ?? null)] },
      }, data.current, element);
    };
    make();
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: Math.max(element.clientWidth, 120), height: HEIGHT }));
    resized.observe(element);
    const themed = new MutationObserver(make);
    themed.observe(document.documentElement, { attributeFilter: ['data-mantine-color-scheme'] });
    return () => {
      resized.disconnect();
      themed.disconnect();
      plot.current?.destroy();
      plot.current = undefined;
    };
    // The values come with the effect below; a new set of lines makes a new chart.
  }, [shape, unit, group, onPoint]);
  useEffect(() => {
    plot.current?.setData(data.current);
  }, [times, lines]);
  return <div ref={box} />;
}
