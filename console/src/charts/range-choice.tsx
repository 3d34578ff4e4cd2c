import { Button } from '@mantine/core';
import css from './charts.module.css';
import { RANGES, type Range } from './queries';

/** Which span of time the charts show. */
export function RangeChoice({ value, onChange }: { value: Range; onChange: (range: Range) => void }) {
  return (
    <div className={css.ranges} role="group" aria-label="Range">
      {RANGES.map((range) => (
        <Button key={range.value} size="compact-xs" variant={range.value === value ? 'light' : 'subtle'} aria-pressed={range.value === value} onClick={() => onChange(range.value)}>
          {range.label}
        </Button>
      ))}
    </div>
  );
}
