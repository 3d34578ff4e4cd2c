import { Drawer, MultiSelect, Select, TextInput } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useNavigate } from '@/routing/view';
import { type FormEvent, useEffect, useMemo, useRef, useState } from 'react';
import { useModel } from '@/api/document';
import { call } from '@/api/http';
import { type JsonObject, isObject, text } from '@/api/json';
import type { Operation } from '@/api/model';
import { type Schema, type Schemas, resolve } from '@/api/schema';
import { eventTitle, humanize } from '@/api/words';
import { problemsOf } from '@/resources/checks';
import { CommandsOf } from '@/resources/commands-of';
import { type FieldError, fieldError } from '@/resources/field-errors';
import { ChangeContext, ObjectFields } from '@/resources/fields';
import { FormError } from '@/resources/form-error';
import { bodyOf, initialValues, withValue } from '@/resources/form-values';
import { Secrets } from '@/resources/shown-once';
import { useResource } from '@/resources/use-resource';
import { Button } from '@/ui/button';
import { Prose } from '@/ui/page';
import { Failure } from '@/ui/states';
import { announce } from '@/ui/toast';
import ui from '@/ui/ui.module.css';
import { TestResult, useTestEvent } from './test-event';
import css from './wizard.module.css';

const COLLECTION = 'event_destinations';
const NONE: FieldError[] = [];
const STEPS = ['Target', 'Settings', 'Test'];
const FORMATS = [
  { value: 'json', label: 'JSON: events as they are' },
  { value: 'ocsf', label: 'OCSF: Open Cybersecurity Schema Framework' },
  { value: 'ecs', label: 'ECS: Elastic Common Schema' },
];

function Steps({ at, steps }: { at: string; steps: string[] }) {
  return (
    <ol className={css.steps} aria-label="Steps">
      {steps.map((step) => (
        <li key={step} aria-current={step === at ? 'step' : undefined}>
          {step}
        </li>
      ))}
    </ol>
  );
}

/** The kinds of targets, each with the sentence of the OpenAPI document. */
function Targets({ onPick }: { onPick: (kind: string) => void }) {
  const { schemas, resources } = useModel();
  const [search, setSearch] = useState('');
  const target = resources.get(COLLECTION)?.create?.body?.properties?.target;
  const kinds = Object.entries(
    (target && resolve(schemas, target).properties) ?? {},
  )
    .map(([kind, schema]) => ({
      kind,
      label: humanize(kind),
      text: schema.description ?? '',
    }))
    .toSorted((a, b) => a.label.localeCompare(b.label));
  const wanted = search.trim().toLowerCase();
  const isNamed = ({ kind, label }: { kind: string; label: string }) =>
    [kind, label.toLowerCase()].some((name) => name.startsWith(wanted));
  const shown = kinds
    .filter(({ kind, label, text: why }) =>
      `${kind} ${label} ${why}`.toLowerCase().includes(wanted),
    )
    // Others have the word in their sentence only.
    .toSorted((a, b) => Number(isNamed(b)) - Number(isNamed(a)));
  return (
    <>
      <TextInput
        label="Where should events go?"
        placeholder="Search targets"
        value={search}
        onChange={(event) => setSearch(event.currentTarget.value)}
        data-autofocus
      />
      <ul className={css.targets}>
        {shown.map(({ kind, label, text: why }) => (
          <li key={kind}>
            <button type="button" onClick={() => onPick(kind)}>
              <b>{label}</b>
              <span>
                <Prose text={why} />
              </span>
            </button>
          </li>
        ))}
      </ul>
      {shown.length === 0 ? <p className={ui.dim}>No target matches.</p> : null}
    </>
  );
}

interface Made {
  object: JsonObject;
  /** The subscription that was to be created with it, if that failed. */
  error: Error | undefined;
}

/** Whether a target has fields whose values are never shown again. */
function hasSecretFields(schemas: Schemas, schema: Schema): boolean {
  return Object.entries(schema.properties ?? {}).some(([name, raw]) => {
    const field = resolve(schemas, raw);
    return (
      field.writeOnly === true ||
      name === 'headers' ||
      hasSecretFields(schemas, field)
    );
  });
}

interface SettingsProps {
  kind: string;
  operation: Operation;
  object: JsonObject | undefined;
  onBack: () => void;
  onMade: (made: Made) => void;
}

/** The settings of one target: what the OpenAPI document demands is checked before the server is asked. */
function Settings({ kind, operation, object, onBack, onMade }: SettingsProps) {
  const model = useModel();
  const client = useQueryClient();
  const schema = operation.body;
  const id = object && text(object.id);
  const target = useMemo(() => {
    const all =
      schema?.properties?.target &&
      resolve(model.schemas, schema.properties.target);
    return all?.properties?.[kind]
      ? resolve(model.schemas, all.properties[kind])
      : undefined;
  }, [schema, model, kind]);
  const before = useMemo(
    () =>
      schema && object
        ? initialValues(model.schemas, schema, object)
        : undefined,
    [model, schema, object],
  );
  const [values, setValues] = useState<JsonObject>(
    before ?? { format: 'json', target: { [kind]: {} } },
  );
  const [kinds, setKinds] = useState<string[]>([]);
  const [attempts, setAttempts] = useState(0);
  const [problems, setProblems] = useState(NONE);
  const form = useRef<HTMLFormElement>(null);
  useEffect(() => {
    // The first field that is wrong comes into sight.
    if (problems.length > 0)
      form.current
        ?.querySelector<HTMLElement>('[aria-invalid="true"]')
        ?.focus();
    // Only a new attempt moves the page.
    // oxlint-disable-next-line react/exhaustive-deps
  }, [attempts]);
  const body = bodyOf(values, before);
  const path = operation.path.replace('{id}', encodeURIComponent(id ?? ''));
  const send = useMutation({
    mutationFn: async (): Promise<Made> => {
      const answer = (await call(operation.method, path, body)) as JsonObject;
      const subscription = {
        description: `Events for ${text(values.description) || text(answer.id)}`,
        destination_ids: [text(answer.id)],
        sources: kinds.map((type) => ({ type })),
      };
      const subscribed =
        kinds.length === 0
          ? undefined
          : await call('POST', '/event_subscriptions', subscription).then(
              () => undefined,
              (error: Error) => error,
            );
      return { object: answer, error: subscribed };
    },
    onSuccess: async (made) => {
      await client.invalidateQueries({ queryKey: [COLLECTION] });
      await client.invalidateQueries({ queryKey: ['event_subscriptions'] });
      announce(object ? 'Saved.' : 'Created the destination.');
      onMade(made);
    },
  });
  if (!schema || !target) return null;
  const refused = fieldError(send.error, ['target', 'description', 'metadata']);
  const errors = problems.length > 0 ? problems : refused ? [refused] : NONE;
  const change = (
    at: (string | number)[],
    value: JsonObject[string] | undefined,
  ) => {
    setValues((now) => withValue(now, at, value));
    setProblems((now) => now.filter(({ field }) => field !== at.join('.')));
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const found = problemsOf(
      model.schemas,
      target,
      isObject(values.target) ? (values.target[kind] ?? {}) : {},
      object !== undefined,
      ['target', kind],
    ).concat(
      problemsOf(
        model.schemas,
        {
          ...schema,
          properties: {
            description: schema.properties?.description ?? {},
            metadata: schema.properties?.metadata ?? {},
          },
          required: [],
        },
        values,
        false,
      ),
    );
    setProblems(found);
    setAttempts((now) => now + 1);
    if (found.length === 0) send.mutate();
  };
  const own =
    isObject(values.target) && isObject(values.target[kind])
      ? values.target[kind]
      : {};
  const subscribes =
    !object && model.resources.get('event_subscriptions')?.create;
  return (
    <form
      ref={form}
      onSubmit={submit}
      className={ui.stack}
      noValidate
      aria-label={`Settings of ${humanize(kind)}`}
    >
      <p className={ui.hint}>
        <Prose text={target.description ?? ''} />
        {object && hasSecretFields(model.schemas, target)
          ? ' Secrets that you leave empty are kept, unless the address changes: then the server asks for them again.'
          : ''}
      </p>
      <ChangeContext value={object !== undefined}>
        <ObjectFields
          path={['target', kind]}
          schema={target}
          value={own}
          errors={errors}
          onChange={change}
        />
        <Select
          label="Format"
          data={FORMATS}
          allowDeselect={false}
          value={text(values.format).toLowerCase()}
          onChange={(next) => change(['format'], next ?? 'json')}
        />
        <ObjectFields
          path={[]}
          schema={{
            ...schema,
            properties: {
              description: schema.properties?.description ?? {},
              metadata: schema.properties?.metadata ?? {},
            },
          }}
          value={values}
          errors={errors}
          onChange={change}
        />
      </ChangeContext>
      {subscribes ? (
        <MultiSelect
          label="Events"
          description="Creates a subscription of these types. Without one, the destination receives nothing; you can add it later."
          searchable
          clearable
          data={[
            ...model.eventClasses.map((type) => ({
              value: type,
              label: `All ${type} events`,
            })),
            ...model.eventTypes.map((type) => ({
              value: type,
              label: eventTitle(type),
            })),
          ]}
          value={kinds}
          onChange={setKinds}
        />
      ) : null}
      {problems.length > 0 ? (
        <p className="field-error" role="alert">
          {problems.length === 1
            ? 'One field needs your attention.'
            : `${problems.length} fields need your attention.`}
        </p>
      ) : null}
      <FormError error={send.error} />
      <CommandsOf
        collection={COLLECTION}
        operation={operation}
        path={path}
        id={id}
        body={body}
      />
      <div className={ui.formFoot}>
        <Button variant="default" onClick={onBack}>
          {object ? 'Cancel' : 'Back'}
        </Button>
        <Button type="submit" loading={send.isPending}>
          {object ? 'Save' : 'Create'}
        </Button>
      </div>
    </form>
  );
}

/** The end: the secrets of a new destination, a test event, sent through the real encoder, and the answer of the destination. */
function TestStep({
  made,
  isNew,
  onDone,
}: {
  made: Made;
  isNew: boolean;
  onDone: () => void;
}) {
  const test = useTestEvent(text(made.object.id));
  return (
    <div className={ui.stack}>
      {isNew ? <Secrets object={made.object} /> : null}
      <p>
        The destination is stored. Send a test event to see whether it arrives:
        it is sent once, now, and waits in no queue.
      </p>
      {made.error ? (
        <>
          <p>The subscription could not be created:</p>
          <Failure error={made.error} />
        </>
      ) : null}
      <div>
        <Button
          loading={test.isPending}
          onClick={() => test.mutate()}
          data-autofocus
        >
          Send a test event
        </Button>
      </div>
      <TestResult test={test} />
      <div className={ui.formFoot}>
        <Button variant="default" onClick={onDone}>
          Finish
        </Button>
      </div>
    </div>
  );
}

/** Creates or changes a destination, step by step: the target, its settings, a test event. */
export default function DestinationWizard({ object }: { object?: JsonObject }) {
  const resource = useResource(COLLECTION);
  const navigate = useNavigate();
  const stored = isObject(object?.target)
    ? Object.entries(object.target).find(([, value]) => isObject(value))?.[0]
    : undefined;
  const [kind, setKind] = useState(stored);
  const [made, setMade] = useState<Made>();
  const operation = object ? resource.update : resource.create;
  if (!operation) return null;
  const id = text((made?.object ?? object)?.id);
  const leave = () =>
    void (id
      ? navigate({
          to: '/$collection/$id',
          params: { collection: COLLECTION, id },
          resetScroll: false,
        })
      : navigate({
          to: '/$collection',
          params: { collection: COLLECTION },
          search: {},
          resetScroll: false,
        }));
  const title = object
    ? `Edit ${text(object.description) || id}`
    : kind
      ? `Create a destination: ${humanize(kind)}`
      : 'Create a destination';
  return (
    <Drawer
      opened
      onClose={leave}
      title={title}
      size="lg"
      closeOnClickOutside={false}
    >
      <Steps
        at={made ? 'Test' : kind ? 'Settings' : 'Target'}
        steps={object ? STEPS.slice(1) : STEPS}
      />
      {kind ? null : <Targets onPick={setKind} />}
      {kind && !made ? (
        <Settings
          key={kind}
          kind={kind}
          operation={operation}
          object={object}
          onBack={object ? leave : () => setKind(undefined)}
          onMade={setMade}
        />
      ) : null}
      {made ? <TestStep made={made} isNew={!object} onDone={leave} /> : null}
    </Drawer>
  );
}
