import { Choice } from '@/ui/choice';
import ui from '@/ui/ui.module.css';

export type View = 'kept' | undefined;

const VIEWS = [
  { value: 'live', label: 'Now' },
  { value: 'kept', label: 'Kept' },
] as const;

/** The choice between events as they happen and those that are kept. */
export function Views({
  view,
  onView,
}: {
  view: View;
  onView: (view: View) => void;
}) {
  return (
    <div className={ui.toolbar}>
      <Choice
        label="Which events"
        options={VIEWS}
        value={view ?? 'live'}
        onChange={(chosen) => onView(chosen === 'kept' ? 'kept' : undefined)}
      />
    </div>
  );
}
