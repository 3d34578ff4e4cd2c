import { Choice } from '@/ui/choice';
import { RANGES, type Range } from './queries';

/** Which span of time the charts show. */
export function RangeChoice({
  value,
  onChange,
}: {
  value: Range;
  onChange: (range: Range) => void;
}) {
  return (
    <Choice label="Range" options={RANGES} value={value} onChange={onChange} />
  );
}
