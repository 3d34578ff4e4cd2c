import { SegmentedControl } from '@mantine/core';

export type View = 'kept' | undefined;

/** The choice between events as they happen and those that are kept. */
export function Views({ view, onView }: { view: View; onView: (view: View) => void }) {
  return (
    <SegmentedControl size="xs" aria-label="Which events" value={view ?? 'live'} onChange={(chosen) => onView(chosen === 'kept' ? 'kept' : undefined)}
      data={[{ value: 'live', label: 'Now' }, { value: 'kept', label: 'Kept' }]} />
  );
}
