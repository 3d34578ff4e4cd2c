import { useEffect, useRef, useState } from 'react';
import { ApiError } from '@/api/error';
import { type Json, text } from '@/api/json';
import { Button } from './button';
import { saveFile } from './save-file';
import ui from './ui.module.css';

/** The most rows of a file: a browser holds it until it is complete. */
const MOST = 100_000;
const AGAIN_MS = 1000;

export interface Column<T> {
  name: string;
  of: (row: T) => Json | undefined;
}

interface Props<T> {
  /** The name of the file, without its end. */
  name: string;
  columns: Column<T>[];
  /** A row as JSON. */
  whole: (row: T) => Json;
  page: (
    cursor: string | undefined,
    signal: AbortSignal,
  ) => Promise<{ rows: T[]; next: string | undefined }>;
}

/** A cell of CSV. Spreadsheets run what begins like a formula, and a stranger may have written it. */
export function cell(value: Json | undefined): string {
  const written = text(value);
  const safe =
    typeof value === 'string' && /^[=+\-@\t\r]/.test(written)
      ? `'${written}`
      : written;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Writes all rows of a search or of a list into a file, page by page. */
export function Export<T>({ name, columns, whole, page }: Props<T>) {
  const [isOpen, setOpen] = useState(false);
  const [note, setNote] = useState('');
  const running = useRef<AbortController>(null);
  const [isRunning, setRunning] = useState(false);
  useEffect(() => () => running.current?.abort(), []);
  const write = async (format: 'csv' | 'jsonl') => {
    const stop = new AbortController();
    running.current = stop;
    setRunning(true);
    const line = (row: T) =>
      format === 'csv'
        ? `${columns.map(({ of }) => cell(of(row))).join(',')}\r\n`
        : `${JSON.stringify(whole(row))}\n`;
    const parts: Blob[] =
      format === 'csv'
        ? [new Blob([`${columns.map((column) => column.name).join(',')}\r\n`])]
        : [];
    let count = 0;
    let next: string | undefined;
    try {
      do {
        const found = await patient(() => page(next, stop.signal), stop.signal);
        const rows = found.rows.slice(0, MOST - count);
        count += rows.length;
        parts.push(new Blob(rows.map(line)));
        ({ next } = found);
        setNote(`${count.toLocaleString()} rows so far`);
      } while (next !== undefined && count < MOST);
      saveFile(
        `${name}.${format}`,
        format === 'csv' ? 'text/csv' : 'application/x-ndjson',
        parts,
      );
      setNote(
        next === undefined
          ? `${count.toLocaleString()} rows written.`
          : `The first ${count.toLocaleString()} rows are written: a file has no more. Narrow the search for the others.`,
      );
    } catch (error) {
      setNote(
        stop.signal.aborted
          ? 'Stopped. No file was written.'
          : `No file was written: ${error instanceof Error ? error.message : String(error)}`,
      );
    } finally {
      setRunning(false);
    }
  };
  return (
    <span className={ui.actions}>
      {isOpen ? (
        <>
          <span className={ui.dim} role="status">
            {note}
          </span>
          {isRunning ? (
            <Button
              size="xs"
              variant="default"
              onClick={() => running.current?.abort()}
            >
              Stop the export
            </Button>
          ) : (
            <>
              <Button
                size="xs"
                variant="default"
                onClick={() => void write('csv')}
              >
                CSV
              </Button>
              <Button
                size="xs"
                variant="default"
                onClick={() => void write('jsonl')}
              >
                JSONL
              </Button>
            </>
          )}
        </>
      ) : null}
      <Button
        size="xs"
        variant="default"
        aria-expanded={isOpen}
        onClick={() => setOpen(!isOpen)}
      >
        Export
      </Button>
    </span>
  );
}

/** Asks again while the server is busy. */
async function patient<R>(
  ask: () => Promise<R>,
  signal: AbortSignal,
): Promise<R> {
  for (;;) {
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 429) throw error;
      await new Promise((resolve) => {
        setTimeout(resolve, AGAIN_MS);
      });
      signal.throwIfAborted();
    }
  }
}
