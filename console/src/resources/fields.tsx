import {
  MultiSelect,
  NumberInput,
  PasswordInput,
  Select,
  TagsInput,
  Textarea,
  TextInput,
} from '@mantine/core';
import { createContext, Suspense, useContext, useMemo } from 'react';
import { lazyPart } from '@/api/load';
import { useModel } from '@/api/document';
import { type Json, type JsonObject, isObject, text } from '@/api/json';
import {
  type Resolved,
  type Schema,
  type Schemas,
  requiredOf,
  resolve,
} from '@/api/schema';
import { humanize, referenceLabel } from '@/api/words';
import { Button } from '@/ui/button';
import { Icon } from '@/ui/icons';
import { Prose } from '@/ui/page';
import ui from '@/ui/ui.module.css';
import { type FieldError, messageAt } from './field-errors';
import { FieldPicker } from '@/events/field-picker';
import { MapField } from './map-field';
import { collectionIn } from './names';
import { ReferenceField } from './reference-field';
import { PolicyEditor } from '@/endpoints/policy-editor';

const CodeEditor = lazyPart(() => import('@/ui/code-editor'));

export type Path = (string | number)[];
export type SetValue = (path: Path, value: Json | undefined) => void;

export interface FieldProps {
  name: string;
  label?: string;
  path: Path;
  schema: Resolved;
  value: Json | undefined;
  required: boolean;
  /** Has the focus when the form opens. */
  first?: boolean;
  errors: readonly FieldError[];
  onChange: SetValue;
}

const SECRET =
  /password|secret(_access)?(_key)?$|^value$|^token$|client_secret/;
/** Whether the form changes an object: its stored secrets are then kept unless new ones are given. */
export const ChangeContext = createContext(false);
const KEPT = 'A value is stored. Leave this empty to keep it.';

/** A change may leave the time empty, which the API writes as a pattern. */
const isTime = ({ format, pattern }: Resolved): boolean =>
  format === 'date-time' ||
  (pattern?.startsWith('^$|^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9:.]') ?? false);

/** How programs write a time: a form has a picker for it. */
const TIME_TEXT =
  /,? (an )?RFC 3339( time)?( in the future)?(,( which is)? shown in UTC)?/;

const LONG = /pem$|^creds$|^metadata$|public_key$|private_key$/;

const strings = (value: Json | undefined): string[] =>
  Array.isArray(value) ? value.map(text) : [];

function CodeField({
  path,
  value,
  onChange,
  language,
  common,
}: Pick<FieldProps, 'path' | 'value' | 'onChange'> & {
  language: 'policy' | 'cel';
  common: Common;
}) {
  const shown =
    typeof value === 'string'
      ? value
      : value
        ? JSON.stringify(value, null, 2)
        : '';
  return (
    <div className={ui.stack}>
      <div>
        <span className={ui.label}>
          {common.label}
          {common.withAsterisk ? (
            <span className={ui.needed} aria-hidden="true">
              {' *'}
            </span>
          ) : null}
        </span>
        <p className={ui.hint}>{common.description}</p>
        {language === 'policy' ? (
          <PolicyEditor
            label={common.label}
            value={shown}
            onChange={(next) => onChange(path, next)}
          />
        ) : (
          <Suspense
            fallback={
              <Textarea
                aria-label={common.label}
                value={shown}
                autosize
                minRows={1}
                readOnly
              />
            }
          >
            <CodeEditor
              label={common.label}
              language={language}
              value={shown}
              isFirst={common['data-autofocus']}
              onChange={(next) => onChange(path, next)}
            />
          </Suspense>
        )}
        {common.error ? (
          <p role="alert" className="field-error">
            {common.error}
          </p>
        ) : null}
      </div>
    </div>
  );
}

interface Common {
  label: string;
  description: React.ReactNode;
  error: string | undefined;
  withAsterisk: boolean;
  /** Whether it has the focus when the form opens. */
  'data-autofocus': true | undefined;
}

/** One field of a form, drawn from its schema. */
export function Field(props: FieldProps) {
  const {
    name,
    label,
    path,
    schema,
    value,
    required,
    first,
    errors,
    onChange,
  } = props;
  const isChange = useContext(ChangeContext);
  const set = (next: Json | undefined) => onChange(path, next);
  const inner = resolve(useModel().schemas, schema.items ?? {});
  // What is picked by its name is not called an ID.
  const isPicked = collectionIn(schema.pattern ?? inner.pattern) !== undefined;
  const common: Common = {
    label: label ?? (isPicked ? referenceLabel(name) : humanize(name)),
    description: schema.description ? (
      <Prose
        text={
          isTime(schema)
            ? schema.description.replace(TIME_TEXT, '')
            : schema.description
        }
      />
    ) : undefined,
    error: messageAt(errors, path),
    withAsterisk: required,
    'data-autofocus': first || undefined,
  };
  const placeholder = schema.writeOnly && isChange ? KEPT : undefined;
  if (name === 'traffic_policy')
    return (
      <CodeField {...{ path, value, onChange, common }} language="policy" />
    );
  if (name === 'filter' || name === 'body_template')
    return <CodeField {...{ path, value, onChange, common }} language="cel" />;
  if (name === 'fields' && path.includes('sources'))
    return <FieldPicker {...common} value={value} onChange={set} />;
  if (schema.types.includes('array'))
    return <ListField {...props} common={common} placeholder={placeholder} />;
  if (schema.types.includes('object') && !schema.types.includes('string'))
    return <ObjectField {...props} common={common} />;
  if (schema.types.includes('boolean')) {
    const data = [
      { value: 'true', label: 'Yes' },
      { value: 'false', label: 'No' },
    ];
    return (
      <Select
        {...common}
        data={data}
        clearable={!required}
        placeholder="Default"
        value={typeof value === 'boolean' ? String(value) : null}
        onChange={(next) => set(next === null ? undefined : next === 'true')}
      />
    );
  }
  const choices = schema.enum
    ?.filter((one) => one !== null && one !== '')
    .map(String);
  if (choices) {
    return (
      <Select
        {...common}
        data={choices}
        searchable={choices.length > 8}
        clearable={!required}
        placeholder={required ? 'Choose one' : 'Default'}
        value={text(value) || null}
        onChange={(next) =>
          set(
            next === null
              ? undefined
              : schema.types.includes('integer')
                ? Number(next)
                : next,
          )
        }
      />
    );
  }
  if (schema.types.includes('integer') || schema.types.includes('number')) {
    return (
      <NumberInput
        {...common}
        value={typeof value === 'number' ? value : ''}
        min={schema.minimum}
        max={schema.maximum}
        onChange={(next) => set(typeof next === 'number' ? next : undefined)}
        hideControls
      />
    );
  }
  if (isTime(schema))
    return <TimeField common={common} value={text(value)} onChange={set} />;
  const collection = collectionIn(schema.pattern);
  if (collection)
    return (
      <ReferenceField
        {...common}
        collection={collection}
        value={text(value)}
        onChange={set}
      />
    );
  if (SECRET.test(name) || (schema.writeOnly && !LONG.test(name))) {
    return (
      <PasswordInput
        {...common}
        placeholder={placeholder}
        value={text(value)}
        onChange={(event) => set(event.currentTarget.value)}
        autoComplete="new-password"
        visibilityToggleButtonProps={{ 'aria-label': `Show ${common.label}` }}
      />
    );
  }
  if (LONG.test(name) || (schema.maxLength ?? 0) > 2048) {
    return (
      <Textarea
        {...common}
        placeholder={placeholder}
        value={text(value)}
        autosize
        minRows={name === 'metadata' ? 1 : 4}
        maxRows={14}
        onChange={(event) => set(event.currentTarget.value)}
      />
    );
  }
  return (
    <TextInput
      {...common}
      value={text(value)}
      onChange={(event) => set(event.currentTarget.value)}
    />
  );
}

/** A time, chosen in the person's own time zone and sent in UTC. */
function TimeField({
  common,
  value,
  onChange,
}: {
  common: Common;
  value: string;
  onChange: (value: string) => void;
}) {
  const time = new Date(value);
  const local = Number.isNaN(time.getTime())
    ? ''
    : new Date(time.getTime() - time.getTimezoneOffset() * 60_000)
        .toISOString()
        .slice(0, 19);
  return (
    <TextInput
      {...common}
      type="datetime-local"
      step={1}
      value={local}
      onChange={(event) => {
        const chosen = event.currentTarget.value;
        onChange(chosen && new Date(chosen).toISOString());
      }}
    />
  );
}

function ListField({
  name,
  path,
  schema,
  value,
  onChange,
  errors,
  common,
  placeholder,
}: FieldProps & { common: Common; placeholder: string | undefined }) {
  const model = useModel();
  const inner = resolve(model.schemas, schema.items ?? {});
  const set = (next: Json | undefined) => onChange(path, next);
  if (inner.types.includes('object')) {
    const list = Array.isArray(value) ? value : [];
    const noun = humanize(name).toLowerCase().replace(/s$/, '');
    return (
      <fieldset className={ui.fieldset}>
        <legend>{common.label}</legend>
        <p className={ui.hint}>{common.description}</p>
        {common.error ? (
          <p role="alert" className="field-error">
            {common.error}
          </p>
        ) : null}
        <div className={ui.stack}>
          {list.map((one, index) => (
            <div
              key={index}
              className={ui.item}
              role="group"
              aria-label={`${humanize(name)} ${index + 1}`}
            >
              <div className={ui.stack}>
                <ObjectFields
                  path={[...path, index]}
                  schema={inner}
                  value={isObject(one) ? one : {}}
                  errors={errors}
                  onChange={onChange}
                />
              </div>
              <Button
                size="xs"
                variant="default"
                aria-label={`Remove ${noun} ${index + 1}`}
                leftSection={<Icon name="close" size={14} />}
                onClick={() => set(list.filter((_, other) => other !== index))}
              >
                Remove {noun}
              </Button>
            </div>
          ))}
          <div>
            <Button
              size="xs"
              variant="default"
              leftSection={<Icon name="plus" size={14} />}
              onClick={() => set([...list, {}])}
            >
              Add {noun}
            </Button>
          </div>
        </div>
      </fieldset>
    );
  }
  const choices = inner.enum?.filter((one) => typeof one === 'string');
  if (choices)
    return (
      <MultiSelect
        {...common}
        data={choices}
        searchable
        clearable
        value={strings(value)}
        onChange={set}
      />
    );
  const collection = collectionIn(inner.pattern);
  if (collection)
    return (
      <ReferenceField
        {...common}
        collection={collection}
        many
        values={strings(value)}
        onChange={set}
      />
    );
  return (
    <TagsInput
      {...common}
      value={strings(value)}
      onChange={set}
      splitChars={[',', '\n']}
      acceptValueOnBlur
      placeholder={placeholder ?? 'Type and press Enter'}
    />
  );
}

function ObjectField(props: FieldProps & { common: Common }) {
  const { path, schema, value, onChange, errors, required, common } = props;
  const kinds = Object.keys(schema.properties ?? {});
  if (kinds.length === 0)
    return (
      <MapField
        {...common}
        value={isObject(value) ? value : {}}
        onChange={(next) => onChange(path, next)}
      />
    );
  const object = isObject(value) ? value : undefined;
  if (schema.maxProperties === 1)
    return <ChoiceField {...props} object={object} />;
  const open = required || object !== undefined;
  return (
    <fieldset className={ui.fieldset}>
      <legend>{common.label}</legend>
      <p className={ui.hint}>{common.description}</p>
      {common.error ? (
        <p role="alert" className="field-error">
          {common.error}
        </p>
      ) : null}
      {open ? (
        <div className={ui.stack}>
          <ObjectFields
            path={path}
            schema={schema}
            value={object ?? {}}
            errors={errors}
            onChange={onChange}
          />
          {required ? null : (
            <div>
              <Button
                size="xs"
                variant="default"
                onClick={() => onChange(path, undefined)}
              >
                Leave it out
              </Button>
            </div>
          )}
        </div>
      ) : (
        <Button
          size="xs"
          variant="default"
          leftSection={<Icon name="plus" size={14} />}
          onClick={() => onChange(path, {})}
        >{`Set ${common.label.toLowerCase()}`}</Button>
      )}
    </fieldset>
  );
}

/** An object that has exactly one of its members: first which, then what is in it. */
function ChoiceField({
  path,
  schema,
  onChange,
  errors,
  common,
  object,
}: FieldProps & { common: Common; object: JsonObject | undefined }) {
  const model = useModel();
  const kind = Object.keys(object ?? {}).find((key) => isObject(object?.[key]));
  const chosen = kind ? schema.properties?.[kind] : undefined;
  const data = Object.keys(schema.properties ?? {})
    .map((key) => ({ value: key, label: humanize(key) }))
    .toSorted((a, b) => a.label.localeCompare(b.label));
  return (
    <fieldset className={ui.fieldset}>
      <legend>{common.label}</legend>
      <div className={ui.stack}>
        <Select
          label={
            path.length > 1 ? `Kind of ${common.label.toLowerCase()}` : 'Kind'
          }
          openOnFocus={false}
          data-autofocus={common['data-autofocus']}
          description={common.description}
          error={common.error}
          withAsterisk
          data={data}
          searchable
          value={kind ?? null}
          placeholder="Choose one"
          allowDeselect={false}
          onChange={(next) => onChange(path, next ? { [next]: {} } : undefined)}
        />
        {kind && chosen ? (
          <>
            <p className={ui.hint}>
              <Prose text={chosen.description ?? ''} />
            </p>
            <ObjectFields
              path={[...path, kind]}
              schema={resolve(model.schemas, chosen)}
              value={object?.[kind] as JsonObject}
              errors={errors}
              onChange={onChange}
            />
          </>
        ) : null}
      </div>
    </fieldset>
  );
}

interface ObjectFieldsProps {
  path: Path;
  schema: Resolved;
  value: JsonObject;
  errors: readonly FieldError[];
  onChange: SetValue;
}

const FEW = 6;
const ORDER = [
  'name',
  'url',
  'domain',
  'upstream_url',
  'upstreams',
  'traffic_policy',
  'target',
  'destination_ids',
  'sources',
];

function rank(key: string, required: ReadonlySet<string>): number {
  if (key === 'metadata') return 300;
  if (key === 'description') return 150;
  if (ORDER.includes(key)) return ORDER.indexOf(key);
  return required.has(key) ? 100 : 200;
}

/** The kinds of an object whose `type` decides which other fields it has, as the API shows such objects. */
function kindsOf(
  schemas: Schemas,
  schema: Resolved,
): Map<string, Schema> | undefined {
  const types = schema.properties?.type?.enum;
  if (!types) return undefined;
  const typeOf = (one: Schema) => one.properties?.type?.const;
  const shown = Object.values(schemas).find(
    ({ oneOf }) =>
      oneOf?.length === types.length &&
      oneOf.every((one) => types.includes(typeOf(one) ?? null)),
  );
  return (
    shown && new Map(shown.oneOf?.map((one) => [String(typeOf(one)), one]))
  );
}

/** All fields of an object: the telling ones first, what is optional behind them. */
export function ObjectFields({
  path,
  schema,
  value,
  errors,
  onChange,
}: ObjectFieldsProps) {
  const model = useModel();
  const isChange = useContext(ChangeContext);
  const kinds = useMemo(
    () => kindsOf(model.schemas, schema),
    [model.schemas, schema],
  );
  const kind = kinds?.get(text(value.type));
  const entries: [string, Schema][] = Object.entries(schema.properties ?? {})
    .filter(
      ([key, field]) =>
        !(path.length === 0 && key === 'id') &&
        field.type !== 'null' &&
        (!kinds || key === 'type' || kind?.properties?.[key]),
    )
    .map(([key, field]) =>
      kinds && key === 'type'
        ? [key, { ...field, description: kind?.description ?? '' }]
        : [key, field],
    );
  /** Another kind takes none of the fields that only the one before has. */
  const change: SetValue = (changed, next) => {
    const fields = kinds?.get(text(next))?.properties;
    if (fields && changed.join('.') === [...path, 'type'].join('.'))
      onChange(path, {
        ...Object.fromEntries(
          Object.entries(value).filter(([key]) => key in fields),
        ),
        type: text(next),
      });
    else onChange(changed, next);
  };
  const required = requiredOf(schema);
  entries.sort(([a], [b]) => rank(a, required) - rank(b, required));
  const draw = ([key, field]: [string, Schema], index: number) => (
    <Field
      key={key}
      name={key}
      path={[...path, key]}
      schema={resolve(model.schemas, field)}
      value={value[key]}
      first={path.length === 0 && index === 0}
      required={required.has(key) && !(isChange && field.writeOnly)}
      errors={errors}
      onChange={change}
    />
  );
  // What is needed is in sight; of a target with nothing that is needed, everything.
  const folds =
    path.length === 0
      ? entries.length > FEW
      : path[0] === 'target' && path.length === 2 && required.size > 0;
  const rare = folds
    ? entries.filter(([key]) => rank(key, required) >= 200)
    : [];
  const often = entries.filter((entry) => !rare.includes(entry));
  const here = (key: string) => [...path, key].join('.');
  const needed = rare.some(
    ([key]) =>
      (value[key] !== undefined && value[key] !== '') ||
      errors.some(({ field }) => `${field}.`.startsWith(`${here(key)}.`)),
  );
  return (
    <>
      {often.map(draw)}
      {rare.length > 0 ? (
        <details className={ui.commands} open={needed || undefined}>
          <summary>
            {rare.length === 1 ? '1 more field' : `${rare.length} more fields`}
          </summary>
          <div className={ui.stack}>{rare.map((entry) => draw(entry, 1))}</div>
        </details>
      ) : null}
    </>
  );
}
