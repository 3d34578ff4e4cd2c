import type { ReactNode } from 'react';
import css from './ui.module.css';

/** What a person wants to know of an object first. */
export function Glance({ items }: { items: [string, ReactNode][] }) {
  return (
    <dl className={css.glance} aria-label="At a glance">
      {items.map(([label, value]) => (
        <div key={label}>
          <dt>{label}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}
