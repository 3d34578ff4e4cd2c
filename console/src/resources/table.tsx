import { Link } from '@tanstack/react-router';
import { Suspense } from 'react';
import { useModel } from '@/api/document';
import type { JsonObject } from '@/api/json';
import type { Resource } from '@/api/model';
import { resolve } from '@/api/schema';
import { humanize } from '@/api/words';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import { columnsOf, underName } from './columns';
import { customOf } from './custom';
import { nameOf } from './names';
import { Value } from './value';

const TIMES = ['created_at', 'started_at'];

/** The objects of a resource as a table; on a phone each is a card. */
export function ResourceTable({ resource, objects, label }: { resource: Resource; objects: JsonObject[]; label: string }) {
  const model = useModel();
  const columns = columnsOf(resource, model.schemas);
  const extra = customOf(resource.name).columns ?? [];
  const time = TIMES.find((key) => resource.item.properties?.[key]);
  return (
    <div className={ui.tableBox} role="region" aria-label={label} tabIndex={0}>
      <table className={ui.table}>
        <thead>
          <tr>
            <th scope="col">Name</th>
            {columns.map((key) => <th key={key} scope="col">{humanize(key)}</th>)}
            {extra.map((column) => <th key={column.label} scope="col">{column.label}</th>)}
            {time ? <th scope="col">{time === 'started_at' ? 'Started' : 'Created'}</th> : null}
          </tr>
        </thead>
        <tbody>
          {objects.map((object) => (
            <tr key={String(object.id)}>
              <td>
                <div>
                  <Link className={ui.strong} to="/$collection/$id" params={{ collection: resource.slug, id: String(object.id) }}>{nameOf(object)}</Link>
                  {underName(object) === nameOf(object) ? null : <span className={ui.sub}>{underName(object)}</span>}
                </div>
              </td>
              {columns.map((key) => (
                <td key={key} data-label={humanize(key)}><div><Value value={object[key]} schema={resolve(model.schemas, resource.item.properties?.[key] ?? {})} short /></div></td>
              ))}
              {extra.map(({ label: head, Cell }) => (
                <td key={head} data-label={head}><Suspense fallback="…"><Cell object={object} /></Suspense></td>
              ))}
              {time ? <td data-label={time === 'started_at' ? 'Started' : 'Created'}><Time value={String(object[time])} relative /></td> : null}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
