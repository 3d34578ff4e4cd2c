import { type ReactNode, useEffect } from 'react';
import { Breakable } from './breakable';
import css from './ui.module.css';

interface PageProps {
  title: string;
  text?: ReactNode;
  actions?: ReactNode;
  above?: ReactNode;
  children: ReactNode;
}

export function Page({ title, text, actions, above, children }: PageProps) {
  useEffect(() => {
    document.title = `${title} · culvert`;
  }, [title]);
  return (
    <div className={css.page}>
      {above}
      <header className={css.pageHead}>
        <div>
          <h1>
            <Breakable text={title} />
          </h1>
          {text ? <p className={css.dim}>{text}</p> : null}
        </div>
        {actions ? <div className={css.actions}>{actions}</div> : null}
      </header>
      {children}
    </div>
  );
}

export function Section({
  title,
  actions,
  children,
}: {
  title: string;
  actions?: ReactNode;
  children: ReactNode;
}) {
  return (
    <section className={css.section}>
      <header>
        <h2>{title}</h2>
        {actions ? <div className={css.actions}>{actions}</div> : null}
      </header>
      {children}
    </section>
  );
}

export type Tone = 'ok' | 'warn' | 'bad' | 'quiet' | 'accent';

export function Tag({
  tone = 'quiet',
  children,
}: {
  tone?: Tone;
  children: ReactNode;
}) {
  return (
    <span className={css.tag} data-tone={tone}>
      {children}
    </span>
  );
}

/** A sentence of the API's documentation: what stands in backticks is code. */
export function Prose({ text }: { text: string }) {
  const parts = text.replaceAll('\n', ' ').split('`');
  return (
    <>
      {parts.map((part, index) =>
        index % 2 ? <code key={index}>{part}</code> : part,
      )}
    </>
  );
}
