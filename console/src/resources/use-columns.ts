import { useMemo, useState } from 'react';
import { useModel } from '@/api/document';
import type { Resource } from '@/api/model';
import { type Column, COLUMNS_MAX, columnsOf } from './columns';

const placeOf = (name: string) => `culvert.columns.${name}`;

/** What the person chose in this browser. Storage may be forbidden or full, and another version may have written it. */
function kept(name: string): string | undefined {
  try {
    return localStorage.getItem(placeOf(name)) ?? undefined;
  } catch {
    return undefined;
  }
}

function keep(name: string, columns: string | undefined): void {
  try {
    if (columns === undefined) localStorage.removeItem(placeOf(name));
    else localStorage.setItem(placeOf(name), columns);
  } catch {
    // The address has them.
  }
}

export interface Chosen {
  columns: Column[];
  all: Column[];
  isUsual: boolean;
  /** The text for the address, kept in this browser; `undefined` for the usual columns. */
  choose: (keys: string[] | undefined) => string | undefined;
}

/** The columns of a list: those of the address, else those that the person chose before, else the usual ones. */
export function useColumns(
  resource: Resource,
  ofAddress: string | undefined,
): Chosen {
  const { schemas } = useModel();
  const { all, usual } = useMemo(
    () => columnsOf(resource, schemas),
    [resource, schemas],
  );
  const [before, setBefore] = useState(() => kept(resource.name));
  const text = ofAddress ?? before;
  const columns = useMemo(() => {
    const known = new Map(all.map((column) => [column.key, column]));
    const asked = new Set(text === undefined ? usual : text.split(','));
    const found = [...asked].flatMap((key) => known.get(key) ?? []);
    return found.length > 0 || text === 'none'
      ? found.slice(0, COLUMNS_MAX)
      : usual.flatMap((key) => known.get(key) ?? []);
  }, [all, usual, text]);
  return {
    columns,
    all,
    isUsual: columns.map(({ key }) => key).join() === usual.join(),
    choose: (keys) => {
      const isUsual = keys === undefined || keys.join() === usual.join();
      const chosen = isUsual ? undefined : keys.join() || 'none';
      keep(resource.name, chosen);
      setBefore(chosen);
      return chosen;
    },
  };
}
