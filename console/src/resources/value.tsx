import { Link } from '@/routing/link';
import { Suspense } from 'react';
import { lazyPart } from '@/api/load';
import { useModelIfThere } from '@/api/document';
import { type Json, isObject, refId, text } from '@/api/json';
import { type Resolved, type Schema, resolve } from '@/api/schema';
import { humanize, referenceLabel } from '@/api/words';
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
/** Who has a grant that all owners with the role have. */
export const EVERYONE = 'role:member';

function ObjectLink({
  id,
  short,
  named,
}: {
  id: string;
  short: boolean;
  named: boolean;
}) {
  const known = useModelIfThere()?.resources.has(collectionOf(id) ?? '');
  const path = known ? pathOf(id) : undefined;
  const name = useNameOf(id, short || named);
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

function TextValue({
  value,
  short,
  named = false,
}: {
  value: string;
  short: boolean;
  named?: boolean;
}) {
  if (value === '') return <Nothing />;
  if (TIME.test(value)) return <Time value={value} relative={short} />;
  if (collectionOf(value) && /^[a-z0-9]+_[A-Za-z0-9]{20,}$/.test(value))
    return <ObjectLink id={value} short={short} named={named} />;
  if (short)
    return value.length > LONG ? (
      <span className={ui.clamped} title={escaped(value)}>
        <Breakable text={`${value.slice(0, LONG)}…`} />
      </span>
    ) : (
      <Breakable text={value} />
    );
  if (value.includes('\n') || value.length > LONG * 2) {
    return (
      <div className={ui.row}>
        <pre
          className={value.includes('\n') ? `${ui.long} ${ui.lines}` : ui.long}
          tabIndex={0}
          role="group"
          aria-label="Text"
        >
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
  /** Whether other objects are shown by their names, as in a table. */
  named?: boolean;
}

/** Any value of the API, read by its schema where there is one. */
export function Value({
  value,
  schema,
  short = false,
  named = false,
}: ValueProps) {
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
    return <TextValue value={value} short={short} named={named} />;
  const id = refId(value);
  if (id) return <ObjectLink id={id} short={short} named={named} />;
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
            <Value value={one} schema={inner} short={short} named={named} />
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

/** Whether a value names other objects: by an ID, or by a list of them. */
const isOfObjects = (value: Json | undefined): boolean =>
  Array.isArray(value)
    ? value.length > 0 && value.every(isOfObjects)
    : collectionOf(refId(value) ?? text(value)) !== undefined;

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
            {isOfObjects(value[key]) ? referenceLabel(key) : humanize(key)}
          </dt>,
          <dd key={key}>
            {key === 'traffic_policy' && value[key] ? (
              <Suspense fallback={<Nothing />}>
                <PolicyValue value={text(value[key])} />
              </Suspense>
            ) : key === 'grantee' && value[key] === EVERYONE ? (
              'All members'
            ) : (
              <Value
                value={value[key]}
                named
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
