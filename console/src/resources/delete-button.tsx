import { Checkbox, Modal, TextInput } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useNavigate } from '@/routing/view';
import { type FormEvent, useState } from 'react';
import { call } from '@/api/http';
import type { JsonObject } from '@/api/json';
import type { Operation, Resource } from '@/api/model';
import { humanize, nounOf } from '@/api/words';
import { Button } from '@/ui/button';
import { Prose } from '@/ui/page';
import { Failure } from '@/ui/states';
import { announce } from '@/ui/toast';
import ui from '@/ui/ui.module.css';
import { CommandsOf } from './commands-of';
import { customOf } from './custom';
import { nameOf } from './names';
import { LockOut, locksOut } from './lock-out';
import { ReferrerList, useReferrers } from './referrers';

/** Deletes after a confirmation; what is dangerous after its name was typed. */
export function DeleteButton({
  resource,
  operation,
  object,
}: {
  resource: Resource;
  operation: Operation;
  object: JsonObject;
}) {
  const [asking, setAsking] = useState(false);
  const [typed, setTyped] = useState('');
  const [isForced, setForced] = useState(false);
  const [options, setOptions] = useState<string[]>([]);
  const client = useQueryClient();
  const navigate = useNavigate();
  const name = nameOf(object);
  const id = String(object.id);
  const referrers = useReferrers(id, asking).data;
  const isInUse = referrers?.blocks ?? false;
  const needsName = customOf(resource.name).dangerous ?? false;
  const wanted = isForced ? [...options, 'force'] : options;
  const path =
    operation.path.replace('{id}', encodeURIComponent(id)) +
    (wanted.length > 0
      ? `?${wanted.map((one) => `${one}=true`).join('&')}`
      : '');
  const remove = useMutation({
    mutationFn: () => call('DELETE', path),
    onSuccess: async () => {
      announce(`Deleted ${name}.`);
      client.removeQueries({ queryKey: [resource.name, 'object', id] });
      await navigate({
        to: '/$collection',
        params: { collection: resource.slug },
        search: {},
      });
      await client.invalidateQueries({ queryKey: [resource.name] });
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (!isInUse && (!needsName || typed === name)) remove.mutate();
  };
  return (
    <>
      <Button variant="outline" color="red" onClick={() => setAsking(true)}>
        Delete
      </Button>
      <Modal
        opened={asking}
        onClose={() => setAsking(false)}
        title={`Delete this ${nounOf(resource.name)}?`}
      >
        <form className={ui.stack} onSubmit={submit}>
          <p>
            <strong>{name}</strong> is deleted for good. The audit log keeps who
            did it.
          </p>
          {referrers ? <ReferrerList referrers={referrers} /> : null}
          {operation.query
            .filter(
              (one) => one.schema?.type === 'boolean' && one.name !== 'force',
            )
            .map((one) => (
              <Checkbox
                key={one.name}
                label={humanize(one.name)}
                description={<Prose text={one.description ?? ''} />}
                checked={options.includes(one.name)}
                onChange={(event) =>
                  setOptions(
                    event.currentTarget.checked
                      ? [...options, one.name]
                      : options.filter((other) => other !== one.name),
                  )
                }
              />
            ))}
          {needsName && !isInUse ? (
            <TextInput
              label={`Type ${name} to confirm`}
              value={typed}
              onChange={(event) => setTyped(event.currentTarget.value)}
              data-autofocus
              autoComplete="off"
            />
          ) : null}
          {remove.error ? <Failure error={remove.error} /> : null}
          {isForced || locksOut(operation, remove.error) ? (
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
              type="submit"
              color="red"
              loading={remove.isPending}
              disabled={isInUse || (needsName && typed !== name)}
            >
              Delete
            </Button>
          </div>
        </form>
      </Modal>
    </>
  );
}
