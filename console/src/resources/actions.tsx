import { Modal } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { call } from '@/api/http';
import { type JsonObject, isObject } from '@/api/json';
import type { Operation, Resource } from '@/api/model';
import { humanize } from '@/api/words';
import { Button } from '@/ui/button';
import { LinkButton } from '@/ui/link-button';
import { Prose } from '@/ui/page';
import { Failure } from '@/ui/states';
import { announce } from '@/ui/toast';
import ui from '@/ui/ui.module.css';
import { CommandsOf } from './commands-of';
import { forced, LockOut, locksOut } from './lock-out';
import { ShownOnce, secretsIn } from './shown-once';

export function sentence(operation: Operation): string {
  return humanize(operation.command);
}

export function hasFields(operation: Operation): boolean {
  return Object.keys(operation.body?.properties ?? {}).some(
    (key) => key !== 'id',
  );
}

interface Props {
  resource: Resource;
  operation: Operation;
  id: string;
  label?: string;
  danger?: boolean;
}

/** A button for an operation without fields: says what it does, and does it after a second click. */
export function ActionButton({
  resource,
  operation,
  id,
  label = sentence(operation),
  danger = operation.method === 'DELETE',
}: Props) {
  const [asking, setAsking] = useState(false);
  const [isForced, setForced] = useState(false);
  const [made, setMade] = useState<JsonObject>();
  const client = useQueryClient();
  const path = operation.path.replace('{id}', encodeURIComponent(id));
  const run = useMutation({
    mutationFn: () =>
      call(
        operation.method,
        forced(path, isForced),
        operation.body ? {} : undefined,
      ),
    onSuccess: async (answer) => {
      if (isObject(answer) && secretsIn(answer).length > 0) setMade(answer);
      else setAsking(false);
      announce(`${label}: done.`);
      await client.invalidateQueries({ queryKey: [resource.name] });
    },
  });
  const close = () => {
    setAsking(false);
    setMade(undefined);
  };
  return (
    <>
      <Button
        {...(danger
          ? { color: 'red', variant: 'outline' }
          : { variant: 'default' })}
        onClick={() => setAsking(true)}
      >
        {label}
      </Button>
      <Modal
        opened={asking && made !== undefined}
        onClose={close}
        title={label}
      >
        {made ? <ShownOnce object={made} onDone={close} /> : null}
      </Modal>
      <Modal
        opened={asking && made === undefined}
        onClose={close}
        title={label}
      >
        <p>
          <Prose text={operation.summary} />
        </p>
        {run.error ? <Failure error={run.error} /> : null}
        {isForced || locksOut(operation, run.error) ? (
          <LockOut checked={isForced} onChange={setForced} />
        ) : null}
        <CommandsOf
          collection={resource.name}
          operation={operation}
          path={path}
          id={id}
          body={{}}
        />
        <div className={ui.formFoot}>
          <Button variant="default" onClick={() => setAsking(false)}>
            Cancel
          </Button>
          <Button
            {...(danger ? { color: 'red' } : {})}
            loading={run.isPending}
            onClick={() => run.mutate()}
            data-autofocus
          >
            {label}
          </Button>
        </div>
      </Modal>
    </>
  );
}

/** Everything that can be done to one object beyond changing and deleting it. */
export function Actions({
  resource,
  object,
  handled,
  isRemoval,
}: {
  resource: Resource;
  object: JsonObject;
  handled: string[];
  /** Those that take something away, or the others. */
  isRemoval: boolean;
}) {
  const id = String(object.id);
  // What is deleted below an object is a field of it; while that is `null` there is nothing to delete.
  const there = ({ path }: Operation) =>
    object[path.split('/')[3] ?? ''] !== null;
  const shown = resource.below.filter(
    (one) =>
      there(one) &&
      one.method !== 'GET' &&
      (one.method === 'DELETE') === isRemoval &&
      !handled.includes(one.command) &&
      !/\{(?!id\})/.test(one.path),
  );
  return shown.map((operation) =>
    hasFields(operation) ? (
      <LinkButton
        key={operation.id}
        variant="default"
        to="/$collection/$id/do/$action"
        params={{ collection: resource.slug, id, action: operation.command }}
        resetScroll={false}
      >
        {sentence(operation)}
      </LinkButton>
    ) : (
      <ActionButton
        key={operation.id}
        resource={resource}
        operation={operation}
        id={id}
      />
    ),
  );
}
