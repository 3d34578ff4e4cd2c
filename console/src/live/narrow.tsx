import { createContext, type ReactNode, useContext } from 'react';
import css from './live.module.css';

/** A value that a search can be narrowed by. */
export interface Value {
  /** What the search calls such values. */
  facet: string;
  /** The value as a word of a search. */
  word: string;
  /** The condition in CEL, where no word finds it. */
  cel?: string | undefined;
}

/** Narrows the search of the page, or begins one. */
export const Narrow = createContext<((value: Value) => void) | undefined>(
  undefined,
);

interface Props extends Value {
  children: ReactNode;
}

const title = (word: string) => `Narrow the search to ${word}`;

/** A value in a row. A row is one option of a list, so the keyboard narrows by the values of its detail. */
export function InRow({ facet, word, children }: Props) {
  const narrow = useContext(Narrow);
  return narrow ? (
    <span
      className={css.inRow}
      title={title(word)}
      onClick={(event) => {
        event.stopPropagation();
        narrow({ facet, word });
      }}
    >
      {children}
    </span>
  ) : (
    children
  );
}

/** A value in an event's detail. */
export function Narrowing({ facet, word, cel, children }: Props) {
  const narrow = useContext(Narrow);
  return narrow ? (
    <button
      type="button"
      className={css.narrowing}
      title={title(word)}
      onClick={() => narrow({ facet, word, cel })}
    >
      {children}
    </button>
  ) : (
    children
  );
}
