import { Link } from '@/routing/link';
import { Suspense } from 'react';
import { lazyPart } from '@/api/load';
import { useModelIfThere } from '@/api/document';
import { type Json, isObject, refId, text } from '@/api/json';
import { type Resolved, type Schema, resolve } from '@/api/schema';
import { humanize } from '@/api/words';
import { Breakable } from '@/ui/breakable';
import { CopyButton } from '@/ui/copy';
import { escaped } from '@/ui/escaped';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import { useNameOf } from './name-of-id';
import { collectionOf, pathOf } from './names';

const PolicyValue = lazyPart(() => import('@/endpoints/policy-value'));

const TIME = /^\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)$/;
const LONG = 160;
const MOST = 3;
const NONE: string[] = [];

function ObjectLink({ id, short }: { id: string; short: boolean }) {
  const known = useModelIfThere()?.resources.has(collectionOf(id) ?? '');
  const path = known ? pathOf(id) : undefined;
  const name = useNameOf(id, short);
  const shortened =
    short && name === id ? { className: ui.fit, title: id } : {};
  return path ? (
    <Link to={path} {...shortened} {...(name === id ? {} : { title: id })}>
      {name === id ? id : <Breakable text={name} />}
    </Link>
  ) : (
    <span {...shortened}>{id}</span>
  );
}

function TextValue({ value, short }: { value: string; short: boolean }) {
  if (value === '') return <Nothing />;
  if (TIME.test(value)) return <Time value={value} relative={short} />;
  if (collectionOf(value) && /^[a-z0-9]+_[A-Za-z0-9]{20,}$/.test(value))
    return <ObjectLink id={value} short={short} />;
  if (short)
    return value.length > LONG ? (
      <span title={escaped(value)}>
        <Breakable text={`${value.slice(0, LONG)}…`} />
      </span>
    ) : (
      <Breakable text={value} />
    );
  if (value.includes('\n') || value.length > LONG * 2) {
    return (
      <div className={ui.row}>
        <pre className={ui.long} tabIndex={0} role="group" aria-label="Text">
          {escaped(value, true)}
        </pre>
        <CopyButton value={value} />
      </div>
    );
  }
  return <Breakable text={value} />;
}

function Nothing() {
  return (
    <span className={ui.dim} aria-label="nothing">
      –
    </span>
  );
}

interface ValueProps {
  value: Json | undefined;
  schema?: Resolved | undefined;
  /** In a table: one line, relative times. */
  short?: boolean;
}

/** Any value of the API, read by its schema where there is one. */
export function Value({ value, schema, short = false }: ValueProps) {
  const model = useModelIfThere();
  if (value === null || value === undefined) return <Nothing />;
  if (typeof value === 'boolean') return <>{value ? 'Yes' : 'No'}</>;
  if (typeof value === 'number')
    return (
      <>
        {schema && schema.format !== 'uint16' ? value.toLocaleString() : value}
      </>
    );
  if (typeof value === 'string')
    return <TextValue value={value} short={short} />;
  const id = refId(value);
  if (id) return <ObjectLink id={id} short={short} />;
  if (Array.isArray(value)) {
    if (value.length === 0) return <Nothing />;
    const inner =
      schema?.items && model ? resolve(model.schemas, schema.items) : undefined;
    const flat = short || value.every((one) => !isObject(one) || refId(one));
    if (short && value.length > MOST)
      return <>{value.length.toLocaleString()} entries</>;
    return (
      <ul className={flat ? ui.list : ui.items}>
        {value.map((one, index) => (
          <li key={index}>
            <Value value={one} schema={inner} short={short} />
            {flat && index < value.length - 1 ? ',' : ''}
          </li>
        ))}
      </ul>
    );
  }
  const set = Object.entries(value).filter(([, one]) => one !== null);
  if (short && typeof value.type === 'string')
    return <Breakable text={value.type} />;
  // The values if they are texts; of a choice such as a target, the chosen name.
  if (
    short &&
    set.length > 0 &&
    set.every(([, one]) => typeof one === 'string')
  )
    return (
      <TextValue
        value={set
          .map(([, one]) => text(one))
          .filter(Boolean)
          .join(', ')}
        short
      />
    );
  if (short)
    return <>{set.map(([key]) => humanize(key)).join(', ') || <Nothing />}</>;
  return set.length === 0 ? (
    <Nothing />
  ) : (
    <Fields
      value={value}
      schema={schema}
      skip={Object.keys(value).filter((key) => value[key] === null)}
    />
  );
}

interface FieldsProps {
  value: { [key: string]: Json };
  schema?: Resolved | Schema | undefined;
  skip?: string[];
}

/** Every field of an object, in the order of its schema. */
export function Fields({ value, schema, skip = NONE }: FieldsProps) {
  const model = useModelIfThere();
  const known = Object.keys(schema?.properties ?? {}).filter(
    (key) => key in value,
  );
  const keys = [
    ...known,
    ...Object.keys(value).filter((key) => !known.includes(key)),
  ].filter((key) => !skip.includes(key));
  return (
    <dl className={ui.fields}>
      {keys.map((key) => {
        const field = schema?.properties?.[key];
        const meaning = field?.description
          ?.replaceAll('`', '')
          .replaceAll('\n', ' ');
        return [
          <dt key={`${key} name`} title={meaning}>
            {humanize(key)}
          </dt>,
          <dd key={key}>
            {key === 'traffic_policy' && value[key] ? (
              <Suspense fallback={<Nothing />}>
                <PolicyValue value={text(value[key])} />
              </Suspense>
            ) : (
              <Value
                value={value[key]}
                schema={
                  field && model ? resolve(model.schemas, field) : undefined
                }
              />
            )}
          </dd>,
        ];
      })}
    </dl>
  );
}
