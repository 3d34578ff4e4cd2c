import { type ReactNode, useEffect, useRef } from 'react';
import { OldConsoleError } from '@/api/build';
import { ApiError, LostServerError } from '@/api/error';
import { Button } from './button';
import { CopyBlock, CopyButton } from './copy';
import css from './ui.module.css';

export function Loading({ label = 'Loading' }: { label?: string }) {
  return (
    <div className={css.loading} role="status" aria-label={label}>
      <span />
      <span />
      <span />
    </div>
  );
}

interface EmptyProps {
  title: string;
  text?: ReactNode;
  command?: string | undefined;
  action?: ReactNode;
}

/** Nothing is there: says what to do next, and holds the command for it. */
export function Empty({ title, text, command, action }: EmptyProps) {
  return (
    <div className={css.empty}>
      <h2>{title}</h2>
      {text ? <p>{text}</p> : null}
      {action}
      {command ? (
        <>
          <p className={css.dim}>In a terminal:</p>
          <CopyBlock value={command} label="the command" />
        </>
      ) : null}
    </div>
  );
}

/** A message as a sentence, so that another one can follow. */
function whole(message: string): string {
  return /[.!?]$/.test(message) ? message : `${message}.`;
}

function explain(error: Error): { title: string; text: string } {
  if (error instanceof LostServerError) {
    return {
      title: 'The server does not answer',
      text: 'The page goes on by itself when it is back.',
    };
  }
  if (error instanceof OldConsoleError) {
    return {
      title: 'This page is of the version before',
      text: 'The server was upgraded. Load the page again; what is not saved here is lost.',
    };
  }
  if (error instanceof ApiError) {
    if (error.status === 403) {
      return {
        title: 'You may not do this',
        text: `${whole(error.message)} An admin can do it, or give you the right.`,
      };
    }
    if (error.status === 404)
      return {
        title: 'It is not there',
        text: `${whole(error.message)} It may have been deleted.`,
      };
    if (error.status >= 500)
      return { title: 'The server could not do this', text: error.message };
    return { title: 'The server refused this', text: error.message };
  }
  return { title: 'This page failed', text: error.message };
}

const AGAIN_MS = 5000;

/** What went wrong, with the code and the request id that the server's log has too. */
export function Failure({
  error,
  retry,
}: {
  error: Error;
  retry?: (() => void) | undefined;
}) {
  const { title, text } = explain(error);
  // What the server cannot do now, such as reading a store that is away, it may do soon.
  const mayPass = error instanceof ApiError && error.status >= 500;
  const latest = useRef(retry);
  useEffect(() => {
    latest.current = retry;
  });
  useEffect(() => {
    if (!mayPass) return undefined;
    const timer = setInterval(() => latest.current?.(), AGAIN_MS);
    return () => clearInterval(timer);
  }, [mayPass]);
  return (
    <div className={css.failure} role="alert">
      <h2>{title}</h2>
      <p>{text}</p>
      {error instanceof ApiError ? <Codes error={error} /> : null}
      {retry && mayPass ? (
        <p className={css.dim}>The page tries again every five seconds.</p>
      ) : null}
      {error instanceof OldConsoleError ? (
        <Button size="xs" onClick={() => location.reload()}>
          Load the page again
        </Button>
      ) : retry ? (
        <Button variant="default" size="xs" onClick={retry}>
          Try again
        </Button>
      ) : null}
    </div>
  );
}

export function Codes({ error }: { error: ApiError }) {
  return (
    <p className={css.codes}>
      {error.code ? <code>{error.code}</code> : null}
      {error.requestId ? (
        <span>
          Request <code>{error.requestId}</code>
          <CopyButton value={error.requestId} label="Copy the request id" />
        </span>
      ) : null}
    </p>
  );
}
