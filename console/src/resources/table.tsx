import { Link } from '@/routing/link';
import { useWindowVirtualizer } from '@tanstack/react-virtual';
import {
  memo,
  Suspense,
  useEffect,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
} from 'react';
import { useModel } from '@/api/document';
import type { JsonObject } from '@/api/json';
import type { Resource } from '@/api/model';
import { Breakable } from '@/ui/breakable';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import {
  type Column,
  columnsOf,
  columnsWithin,
  nameField,
  underName,
} from './columns';
import { nameOf } from './names';
import type { More } from './use-list';
import { Value } from './value';

/** Tables with more rows than this have only those in the page that are near the screen. */
const SHORT = 40;
const OVERSCAN = 20;
/** Rows before the end at which the next page is read. */
const AHEAD = 60;
const HEIGHT = 58;
/** The height that rows of each collection had last: back in a list, the same rows are in sight. */
const heights = new Map<string, number>();

/** The choice of some rows. */
export interface Choosing {
  ids: ReadonlySet<string>;
  toggle: (id: string) => void;
}

interface CellsProps {
  object: JsonObject;
  slug: string;
  columns: Column[];
  /** Whether the row is chosen; `undefined` where none can be. */
  isChosen: boolean | undefined;
  toggle: ((id: string) => void) | undefined;
}

function Cells({ object, slug, columns, isChosen, toggle }: CellsProps) {
  const id = String(object.id);
  const name = nameOf(object);
  const under = underName(object);
  return (
    <>
      <td>
        <div className={toggle ? ui.picking : undefined}>
          {toggle ? (
            <input
              type="checkbox"
              aria-label={`Choose ${name}`}
              checked={isChosen ?? false}
              onChange={() => toggle(id)}
            />
          ) : null}
          <Link
            className={name === id ? `${ui.strong} ${ui.fit}` : ui.strong}
            to="/$collection/$id"
            params={{ collection: slug, id }}
            {...(name === id ? { title: id } : {})}
          >
            <Breakable text={name} />
          </Link>
          {under === name ? null : under === id ? (
            <span className={`${ui.sub} ${ui.fit}`} title={id}>
              {id}
            </span>
          ) : (
            <span className={ui.sub}>{under}</span>
          )}
        </div>
      </td>
      {columns.map(({ key, label, schema, Cell, isTime, isDown }) => (
        <td key={key} data-label={label} data-narrow={isDown || undefined}>
          {Cell ? (
            <Suspense fallback="…">
              <Cell object={object} />
            </Suspense>
          ) : isTime && typeof object[key] === 'string' ? (
            <Time value={object[key]} relative />
          ) : key === 'id' ? (
            <div>
              <code className={ui.fit} title={id}>
                {id}
              </code>
            </div>
          ) : (
            <div>
              <Value value={object[key]} schema={schema} short />
            </div>
          )}
        </td>
      ))}
    </>
  );
}

const Row = memo(Cells);

/** Its cell is only below the first column: one that spans all would keep room for a column that is hidden. */
function Spacer({ height }: { height: number }) {
  return height > 0 ? (
    <tr className={ui.spacer} aria-hidden="true">
      <td style={{ height }} />
    </tr>
  ) : null;
}

interface BodyProps {
  objects: JsonObject[];
  slug: string;
  columns: Column[];
  more: More | undefined;
  choosing: Choosing | undefined;
}

/** The rows near the screen, between two empty ones as high as the others. */
function LongBody({ objects, more, choosing, ...row }: BodyProps) {
  const body = useRef<HTMLTableSectionElement>(null);
  const [top, setTop] = useState(0);
  useLayoutEffect(() => {
    const measure = () =>
      setTop(
        Math.round(
          (body.current?.getBoundingClientRect().top ?? 0) + window.scrollY,
        ),
      );
    measure();
    // What stands above the table may grow.
    const observer = new ResizeObserver(measure);
    observer.observe(document.body);
    return () => observer.disconnect();
  }, []);
  // It stays while the table is there: one that changed would move the rows under a reader who scrolls.
  const [height] = useState(() => heights.get(row.slug) ?? HEIGHT);
  const virtual = useWindowVirtualizer({
    count: objects.length,
    estimateSize: () => height,
    overscan: OVERSCAN,
    scrollMargin: top,
    getItemKey: (index) => String(objects[index]?.id ?? index),
  });
  const rows = virtual.getVirtualItems();
  const last = rows.at(-1);
  const size = rows.at(Math.floor(rows.length / 2))?.size;
  const seen = useRef(size);
  useEffect(() => {
    seen.current = size;
  }, [size]);
  useEffect(
    () => () => {
      if (seen.current) heights.set(row.slug, seen.current);
    },
    [row.slug],
  );
  const isNearEnd =
    more?.has &&
    !more.isLoading &&
    !more.error &&
    (last?.index ?? 0) >= objects.length - AHEAD;
  const load = more?.load;
  useEffect(() => {
    if (isNearEnd) load?.();
    // Each page that arrives asks again.
    // oxlint-disable-next-line react/exhaustive-deps
  }, [isNearEnd, objects.length]);
  return (
    <tbody ref={body}>
      <Spacer height={(rows[0]?.start ?? top) - top} />
      {rows.map(({ index, key }) => {
        const object = objects[index];
        return object ? (
          <tr
            key={key}
            ref={virtual.measureElement}
            data-index={index}
            aria-rowindex={index + 2}
          >
            <Row
              object={object}
              isChosen={choosing?.ids.has(String(object.id))}
              toggle={choosing?.toggle}
              {...row}
            />
          </tr>
        ) : null;
      })}
      <Spacer height={virtual.getTotalSize() - ((last?.end ?? top) - top)} />
    </tbody>
  );
}

/** The order of a list, and what changes it. */
export interface Sorting {
  order: string | undefined;
  sort: (order: string | undefined) => void;
}

/** The order behind this one when the head of a field is pressed: up, down, the newest first. Of amounts, the largest are first. */
function after(order: string | undefined, field: string, isDown: boolean) {
  const orders = isDown ? [`-${field}`, field] : [field, `-${field}`];
  return orders[order ? orders.indexOf(order) + 1 : 0];
}

function Head({
  label,
  field,
  isDown = false,
  sorting,
}: {
  label: string;
  field: string | undefined;
  isDown?: boolean;
  sorting: Sorting | undefined;
}) {
  const narrow = isDown || undefined;
  if (!field || !sorting)
    return (
      <th scope="col" data-narrow={narrow}>
        {label}
      </th>
    );
  const { order, sort } = sorting;
  const state =
    order === field
      ? 'ascending'
      : order === `-${field}`
        ? 'descending'
        : 'none';
  return (
    <th scope="col" aria-sort={state} data-narrow={narrow}>
      <button
        type="button"
        className={ui.sort}
        onClick={() => sort(after(order, field, isDown))}
      >
        {label}
        <span aria-hidden="true">
          {state === 'ascending' ? ' ↑' : state === 'descending' ? ' ↓' : ''}
        </span>
      </button>
    </th>
  );
}

interface TableProps {
  resource: Resource;
  objects: JsonObject[];
  label: string;
  /** The list continues on further pages. */
  more?: More;
  /** Columns that a person chose. */
  columns?: Column[];
  isUsual?: boolean;
  sorting?: Sorting;
  choosing?: Choosing | undefined;
  /** The object that all of these belong to, on its page. */
  parent?: JsonObject;
}

/** The objects of a resource as a table; on a phone each is a card. */
export function ResourceTable({
  resource,
  objects,
  label,
  more,
  columns: chosen,
  isUsual = true,
  sorting,
  choosing,
  parent,
}: TableProps) {
  const { schemas } = useModel();
  const usual = useMemo(() => {
    const { all, usual: keys } = columnsOf(resource, schemas);
    return all.slice(0, keys.length);
  }, [resource, schemas]);
  const columns = useMemo(
    () => chosen ?? (parent ? columnsWithin(usual, objects, parent) : usual),
    [chosen, parent, usual, objects],
  );
  const isLong = objects.length > SHORT || more?.has === true;
  const row = { slug: resource.slug, columns };
  return (
    <div className={ui.tableBox} role="region" aria-label={label} tabIndex={0}>
      <table
        className={ui.table}
        data-long={isLong}
        data-usual={isUsual}
        style={{ '--columns': columns.length } as Record<string, number>}
        {...(isLong
          ? { 'aria-rowcount': more?.has ? -1 : objects.length + 1 }
          : {})}
      >
        <thead>
          <tr {...(isLong ? { 'aria-rowindex': 1 } : {})}>
            <Head
              label="Name"
              field={nameField(resource, schemas)}
              sorting={sorting}
            />
            {columns.map((column) => (
              <Head
                key={column.key}
                label={column.label}
                field={column.isSortable ? column.key : undefined}
                isDown={column.isDown}
                sorting={sorting}
              />
            ))}
          </tr>
        </thead>
        {isLong ? (
          <LongBody
            objects={objects}
            more={more}
            choosing={choosing}
            {...row}
          />
        ) : (
          <tbody>
            {objects.map((object) => (
              <tr key={String(object.id)}>
                <Row
                  object={object}
                  isChosen={choosing?.ids.has(String(object.id))}
                  toggle={choosing?.toggle}
                  {...row}
                />
              </tr>
            ))}
          </tbody>
        )}
      </table>
    </div>
  );
}
