import { Link } from '@tanstack/react-router';
import { useWindowVirtualizer } from '@tanstack/react-virtual';
import {
  memo,
  type ReactNode,
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
import { type Resolved, resolve } from '@/api/schema';
import { humanize } from '@/api/words';
import { Breakable } from '@/ui/breakable';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import { columnsOf, underName } from './columns';
import { type ColumnDef, customOf } from './custom';
import { nameOf } from './names';
import type { More } from './use-list';
import { Value } from './value';

const TIMES = ['created_at', 'started_at'];
/** Tables with more rows than this have only those in the page that are near the screen. */
const SHORT = 40;
const OVERSCAN = 20;
/** Rows before the end at which the next page is read. */
const AHEAD = 60;
const HEIGHT = 58;

interface Columns {
  slug: string;
  fields: { key: string; label: string; schema: Resolved }[];
  extra: ColumnDef[];
  time: string | undefined;
}

function Cells({ object, columns }: { object: JsonObject; columns: Columns }) {
  const { slug, fields, extra, time } = columns;
  const id = String(object.id);
  const name = nameOf(object);
  const under = underName(object);
  return (
    <>
      <td>
        <div>
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
      {fields.map(({ key, label, schema }) => (
        <td key={key} data-label={label}>
          <div>
            <Value value={object[key]} schema={schema} short />
          </div>
        </td>
      ))}
      {extra.map(({ label: head, Cell }) => (
        <td key={head} data-label={head}>
          <Suspense fallback="…">
            <Cell object={object} />
          </Suspense>
        </td>
      ))}
      {time ? (
        <td data-label={time === 'started_at' ? 'Started' : 'Created'}>
          <Time value={String(object[time])} relative />
        </td>
      ) : null}
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

/** The rows near the screen, between two empty ones as high as the others. */
function LongBody({
  objects,
  columns,
  more,
}: {
  objects: JsonObject[];
  columns: Columns;
  more: More | undefined;
}) {
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
  const virtual = useWindowVirtualizer({
    count: objects.length,
    estimateSize: () => HEIGHT,
    overscan: OVERSCAN,
    scrollMargin: top,
    getItemKey: (index) => String(objects[index]?.id ?? index),
  });
  const rows = virtual.getVirtualItems();
  const last = rows.at(-1);
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
            <Row object={object} columns={columns} />
          </tr>
        ) : null;
      })}
      <Spacer height={virtual.getTotalSize() - ((last?.end ?? top) - top)} />
    </tbody>
  );
}

/** The objects of a resource as a table; on a phone each is a card. `more`: the list continues on further pages. */
export function ResourceTable({
  resource,
  objects,
  label,
  more,
}: {
  resource: Resource;
  objects: JsonObject[];
  label: string;
  more?: More;
}) {
  const model = useModel();
  const columns = useMemo(
    (): Columns => ({
      slug: resource.slug,
      fields: columnsOf(resource, model.schemas).map((key) => ({
        key,
        label: humanize(key),
        schema: resolve(model.schemas, resource.item.properties?.[key] ?? {}),
      })),
      extra: customOf(resource.name).columns ?? [],
      time: TIMES.find((key) => resource.item.properties?.[key]),
    }),
    [resource, model.schemas],
  );
  const { fields, extra, time } = columns;
  const heads: ReactNode[] = [
    'Name',
    ...fields.map((field) => field.label),
    ...extra.map((column) => column.label),
    ...(time ? [time === 'started_at' ? 'Started' : 'Created'] : []),
  ];
  const isLong = objects.length > SHORT || more?.has;
  return (
    <div className={ui.tableBox} role="region" aria-label={label} tabIndex={0}>
      <table
        className={ui.table}
        data-long={isLong}
        {...(isLong
          ? { 'aria-rowcount': more?.has ? -1 : objects.length + 1 }
          : {})}
      >
        <thead>
          <tr {...(isLong ? { 'aria-rowindex': 1 } : {})}>
            {heads.map((head) => (
              <th key={String(head)} scope="col">
                {head}
              </th>
            ))}
          </tr>
        </thead>
        {isLong ? (
          <LongBody objects={objects} columns={columns} more={more} />
        ) : (
          <tbody>
            {objects.map((object) => (
              <tr key={String(object.id)}>
                <Row object={object} columns={columns} />
              </tr>
            ))}
          </tbody>
        )}
      </table>
    </div>
  );
}
