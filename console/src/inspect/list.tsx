import { clock } from '@/ui/time';
import { duration, type Summary } from './exchange';
import css from './inspect.module.css';

interface ListProps {
  requests: Summary[];
  selected: number | undefined;
  onSelect: (id: number) => void;
}

/** The requests, newest first. */
export function RequestList({ requests, selected, onSelect }: ListProps) {
  return (
    <ul className={css.list} aria-label="Requests">
      {requests.map((it) => (
        <li key={it.id}>
          <button
            type="button"
            className={css.row}
            aria-current={it.id === selected || undefined}
            onClick={() => onSelect(it.id)}
          >
            <span className={css.method}>{it.method}</span>
            <span className={css.path} title={it.path}>
              {it.path}
            </span>
            <span
              className={css.code}
              data-class={it.status === null ? '0' : String(it.status)[0]}
            >
              {it.status ?? 'canceled'}
            </span>
            <span className={css.quiet}>{duration(it.took_ms)}</span>
            <span className={css.quiet}>
              {clock(new Date(it.at).toISOString())}
              {it.replay_of ? ' · replay' : ''}
            </span>
          </button>
        </li>
      ))}
    </ul>
  );
}
