import { Drawer } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { type FormEvent, useMemo, useState } from 'react';
import { useModel } from '@/api/document';
import { call } from '@/api/http';
import { type JsonObject, isObject, text } from '@/api/json';
import type { Operation, Resource } from '@/api/model';
import { nounOf } from '@/api/words';
import { PolicyFormContext } from '@/endpoints/policy-context';
import { PolicyReview } from '@/endpoints/policy-review';
import { Button } from '@/ui/button';
import { announce } from '@/ui/toast';
import ui from '@/ui/ui.module.css';
import { CommandsOf } from './commands-of';
import { type FieldError, fieldError } from './field-errors';
import { FormError } from './form-error';
import { ChangeContext, ObjectFields } from './fields';
import { forced, LockOut, locksOut } from './lock-out';
import { bodyOf, initialValues, withValue } from './form-values';
import { ShownOnce, secretsIn } from './shown-once';

interface Props {
  resource: Resource;
  operation: Operation;
  title: string;
  /** The word on the button. */
  verb: string;
  /** What is changed; nothing for a creation. */
  object?: JsonObject;
  id?: string;
  defaults?: JsonObject;
  onClose: () => void;
  onDone: (answer: JsonObject | undefined) => void;
}

const NONE: FieldError[] = [];

/** A form in a panel at the side, drawn from the body that its operation takes. */
export function FormPanel({
  resource,
  operation,
  title,
  verb,
  object,
  id,
  defaults,
  onClose,
  onDone,
}: Props) {
  const model = useModel();
  const client = useQueryClient();
  const schema = operation.body;
  const before = useMemo(
    () =>
      schema && object
        ? initialValues(model.schemas, schema, object)
        : undefined,
    [model, schema, object],
  );
  const [values, setValues] = useState<JsonObject>(before ?? defaults ?? {});
  const [isForced, setForced] = useState(false);
  const [created, setCreated] = useState<JsonObject>();
  const [isReviewed, setIsReviewed] = useState(false);
  const form = useMemo(() => ({ values, id }), [values, id]);
  const path = id
    ? operation.path.replace('{id}', encodeURIComponent(id))
    : operation.path;
  const body = bodyOf(values, before);
  const send = useMutation({
    mutationFn: () => call(operation.method, forced(path, isForced), body),
    // A refusal is shown at its field.
    onError: () => setIsReviewed(false),
    onSuccess: async (answer) => {
      await client.invalidateQueries({ queryKey: [resource.name] });
      announce(
        verb === 'Save'
          ? 'Saved.'
          : verb === 'Create'
            ? `Created the ${nounOf(resource.name)}.`
            : `${verb}: done.`,
      );
      const made = isObject(answer) ? answer : undefined;
      if (made && secretsIn(made).length > 0) setCreated(made);
      else onDone(made);
    },
  });
  const [policy, nextPolicy] = [before, values].map((each) =>
    text(each?.traffic_policy),
  );
  const hasOtherPolicy = before !== undefined && policy !== nextPolicy;
  const problem = fieldError(send.error, Object.keys(schema?.properties ?? {}));
  const submit = (event: FormEvent) => {
    event.preventDefault();
    // What a policy does to traffic is looked at before it is saved.
    if (hasOtherPolicy && !isReviewed) setIsReviewed(true);
    else send.mutate();
  };
  return (
    <Drawer
      opened
      onClose={created ? () => onDone(created) : onClose}
      title={title}
      size="lg"
      closeOnClickOutside={false}
    >
      {created ? (
        <ShownOnce object={created} onDone={() => onDone(created)} />
      ) : (
        <form onSubmit={submit} className={ui.stack} noValidate>
          {hasOtherPolicy && isReviewed ? (
            <PolicyReview before={policy ?? ''} after={nextPolicy ?? ''} />
          ) : (
            <ChangeContext value={before !== undefined}>
              <PolicyFormContext value={form}>
                {schema ? (
                  <ObjectFields
                    path={[]}
                    schema={schema}
                    value={values}
                    errors={problem ? [problem] : NONE}
                    onChange={(at, value) =>
                      setValues((now) => withValue(now, at, value))
                    }
                  />
                ) : null}
              </PolicyFormContext>
            </ChangeContext>
          )}
          <FormError error={send.error} />
          {isForced || locksOut(operation, send.error) ? (
            <LockOut checked={isForced} onChange={setForced} />
          ) : null}
          <CommandsOf
            collection={resource.name}
            operation={operation}
            path={path}
            id={id}
            body={body}
          />
          <div className={ui.formFoot}>
            {isReviewed ? (
              <Button variant="default" onClick={() => setIsReviewed(false)}>
                Back to the form
              </Button>
            ) : (
              <Button variant="default" onClick={onClose}>
                Cancel
              </Button>
            )}
            <Button type="submit" loading={send.isPending}>
              {hasOtherPolicy && !isReviewed ? 'Review changes' : verb}
            </Button>
          </div>
        </form>
      )}
    </Drawer>
  );
}
