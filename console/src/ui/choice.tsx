import { Button } from './button';
import css from './ui.module.css';

interface Props<T extends string> {
  label: string;
  options: readonly { value: T; label: string }[];
  value: T;
  onChange: (value: T) => void;
}

/** A few options of which one is chosen, side by side. */
export function Choice<T extends string>({
  label,
  options,
  value,
  onChange,
}: Props<T>) {
  return (
    <div className={css.choice} role="group" aria-label={label}>
      {options.map((option) => (
        <Button
          key={option.value}
          size="compact-xs"
          variant={option.value === value ? 'light' : 'subtle'}
          aria-pressed={option.value === value}
          onClick={() => onChange(option.value)}
        >
          {option.label}
        </Button>
      ))}
    </div>
  );
}
