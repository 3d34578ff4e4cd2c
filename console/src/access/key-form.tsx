import { Checkbox, Drawer, Select, TextInput } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useNavigate, useSearch } from '@/routing/view';
import { type FormEvent, useState } from 'react';
import { useModel } from '@/api/document';
import { call } from '@/api/http';
import { type Json, type JsonObject, isObject, text } from '@/api/json';
import { type Resolved, resolve } from '@/api/schema';
import { CommandsOf } from '@/resources/commands-of';
import { fieldError, messageAt } from '@/resources/field-errors';
import { Field } from '@/resources/fields';
import { FormError } from '@/resources/form-error';
import { listAddressOf } from '@/resources/queries';
import { bodyOf, withValue } from '@/resources/form-values';
import { ShownOnce } from '@/resources/shown-once';
import { useResource } from '@/resources/use-resource';
import { roleOf } from '@/session/roles';
import { Button } from '@/ui/button';
import { OwnerField } from './owner-field';
import { Prose, Tag } from '@/ui/page';
import { Time } from '@/ui/time';
import { announce } from '@/ui/toast';
import ui from '@/ui/ui.module.css';

/** Restrictions for what keys are made for most. */
const PRESETS: { label: string; values: JsonObject }[] = [
  { label: 'Everything that its owner may do', values: {} },
  { label: 'Read only', values: { role: 'read_only' } },
  {
    label: 'Deploys: endpoints, domains and the secrets of their policies',
    values: {
      role: 'member',
      scopes: ['domains.write', 'endpoints.write', 'secrets.read'],
    },
  },
  {
    label: 'CI: endpoints and events, for 90 days',
    values: {
      role: 'member',
      scopes: ['endpoints.write', 'events.read'],
      expires_at: '90d',
    },
  },
  {
    label: 'Agent only: credentials of agents, and their sessions',
    values: {
      scopes: [
        'agents.write',
        'credentials.write',
        'endpoints.write',
        'secrets.read',
      ],
    },
  },
];

const SPANS = [
  { label: '30 days', days: 30 },
  { label: '90 days', days: 90 },
  { label: '1 year', days: 365 },
];

const strings = (value: Json | undefined): string[] =>
  Array.isArray(value) ? value.map(text) : [];

/** The date so many days from now, as a date picker has it. */
function dateIn(days: number): string {
  return new Date(Date.now() + days * 86_400_000).toISOString().slice(0, 10);
}

const FILLED = ['role', 'scopes', 'expires_at'];

/** The form with a preset, whose duration becomes the date that the picker shows. */
function applied(now: JsonObject, preset: JsonObject): JsonObject {
  const kept = Object.entries(now).filter(([key]) => !FILLED.includes(key));
  const days = /^(\d+)d$/.exec(text(preset.expires_at))?.[1];
  const end: JsonObject = days ? { expires_at: dateIn(Number(days)) } : {};
  return { ...Object.fromEntries(kept), ...preset, ...end };
}

function Scopes({
  schema,
  value,
  error,
  onChange,
}: {
  schema: Resolved;
  value: string[];
  error: string | undefined;
  onChange: (next: string[]) => void;
}) {
  const names = (schema.enum ?? []).map(String);
  const sentences = schema['x-enum-descriptions'] ?? [];
  return (
    <Checkbox.Group
      label="Scopes"
      description="What the key may do. None for everything that its role may do."
      error={error}
      value={value}
      onChange={onChange}
    >
      <div className={ui.stack}>
        {names.map((name, index) => (
          <Checkbox
            key={name}
            value={name}
            label={name}
            description={sentences[index]}
            size="xs"
          />
        ))}
      </div>
    </Checkbox.Group>
  );
}

/** What the key could do, as the dry run of its creation says. */
function Rights({ preview }: { preview: JsonObject }) {
  const operations = strings(preview.operations);
  const end = text(preview.expires_at);
  const networks = strings(preview.networks);
  return (
    <div className={ui.once} role="status">
      <p>
        A key of {text(preview.owner_name)} with the role{' '}
        <strong>{roleOf(text(preview.role))}</strong>, for {operations.length}{' '}
        operations
        {networks.length > 0
          ? `, from ${networks.join(', ')}`
          : ', from anywhere'}
        {end ? (
          <>
            , until <Time value={end} />.
          </>
        ) : (
          ', without an end.'
        )}
      </p>
      <details className={ui.commands}>
        <summary>Operations</summary>
        <p>
          {operations.map((one) => (
            <Tag key={one}>{one}</Tag>
          ))}
        </p>
      </details>
    </div>
  );
}

/** Creates a key with its restrictions, in one form. */
export default function KeyForm() {
  const model = useModel();
  const client = useQueryClient();
  const navigate = useNavigate();
  const search = useSearch(listAddressOf);
  const resource = useResource('api_keys');
  const operation = resource.create;
  const [values, setValues] = useState<JsonObject>({});
  const [preset, setPreset] = useState(PRESETS[0]?.label ?? '');
  const [created, setCreated] = useState<JsonObject>();
  const body = bodyOf(values, undefined);
  const change = () => client.invalidateQueries({ queryKey: ['api_keys'] });
  const create = useMutation({
    mutationFn: () => call('POST', '/api_keys', body),
    onSuccess: async (answer) => {
      await change();
      announce('Created the API key.');
      if (isObject(answer)) setCreated(answer);
    },
  });
  const dry = useMutation({
    mutationFn: () => call('POST', '/api_keys?dry_run=true', body),
  });
  if (!operation?.body) return null;
  const properties = operation.body.properties ?? {};
  const error = create.error ?? dry.error;
  const problem = fieldError(error, Object.keys(properties));
  const errors = problem ? [problem] : [];
  const set = (path: (string | number)[], value: Json | undefined) => {
    dry.reset();
    setValues((now) => withValue(now, path, value));
  };
  const field = (name: string, first = false) => (
    <Field
      name={name}
      path={[name]}
      schema={resolve(model.schemas, properties[name] ?? {})}
      value={values[name]}
      first={first}
      required={false}
      errors={errors}
      onChange={set}
    />
  );
  const scopes = resolve(model.schemas, properties.scopes ?? {});
  const close = () =>
    void navigate({
      to: '/$collection',
      params: { collection: 'api_keys' },
      search,
      resetScroll: false,
    });
  const done = () =>
    void navigate({
      to: '/$collection/$id',
      params: { collection: 'api_keys', id: String(created?.id) },
    });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    create.mutate();
  };
  return (
    <Drawer
      opened
      onClose={created ? done : close}
      title="Create an API key"
      size="lg"
      closeOnClickOutside={false}
    >
      {created ? (
        <ShownOnce object={created} onDone={done} />
      ) : (
        <form onSubmit={submit} className={ui.stack} noValidate>
          {field('description', true)}
          <Select
            label="Made for"
            description="Fills in the role, the scopes and the end. All can be changed below."
            data={PRESETS.map(({ label }) => label)}
            allowDeselect={false}
            value={preset}
            onChange={(next) => {
              const found = PRESETS.find(({ label }) => label === next);
              if (!found) return;
              dry.reset();
              setPreset(found.label);
              setValues((now) => applied(now, found.values));
            }}
          />
          {field('role')}
          <Scopes
            schema={resolve(model.schemas, scopes.items ?? {})}
            value={strings(values.scopes)}
            error={messageAt(errors, ['scopes'])}
            onChange={(next) => set(['scopes'], next)}
          />
          {field('networks')}
          <div>
            <TextInput
              label="Expires"
              description="The key stops working when this day begins, in UTC. Empty for never."
              type="date"
              min={dateIn(1)}
              value={text(values.expires_at)}
              error={messageAt(errors, ['expires_at'])}
              onChange={(event) =>
                set(['expires_at'], event.currentTarget.value || undefined)
              }
            />
            <div className={ui.actions}>
              {SPANS.map(({ label, days }) => (
                <Button
                  key={label}
                  size="compact-xs"
                  variant="subtle"
                  onClick={() => set(['expires_at'], dateIn(days))}
                >
                  {label}
                </Button>
              ))}
            </div>
          </div>
          <OwnerField
            description={
              <Prose text={properties.owner_id?.description ?? ''} />
            }
            value={text(values.owner_id)}
            error={messageAt(errors, ['owner_id'])}
            onChange={(next) => set(['owner_id'], next)}
          />
          {field('metadata')}
          {isObject(dry.data) ? <Rights preview={dry.data} /> : null}
          <FormError error={error} />
          <CommandsOf
            collection="api_keys"
            operation={operation}
            path={operation.path}
            body={body}
          />
          <div className={ui.formFoot}>
            <Button variant="default" onClick={close}>
              Cancel
            </Button>
            <Button
              variant="default"
              loading={dry.isPending}
              onClick={() => dry.mutate()}
            >
              What could it do?
            </Button>
            <Button type="submit" loading={create.isPending}>
              Create
            </Button>
          </div>
        </form>
      )}
    </Drawer>
  );
}
