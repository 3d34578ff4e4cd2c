import { Modal, TagsInput } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { type FormEvent, Fragment, useState } from 'react';
import { useModel } from '@/api/document';
import { call } from '@/api/http';
import { type JsonObject, text } from '@/api/json';
import type { Operation } from '@/api/model';
import { CommandsOf } from '@/resources/commands-of';
import { objectQuery } from '@/resources/queries';
import { ReferenceField } from '@/resources/reference-field';
import { Button } from '@/ui/button';
import { Section, Tag } from '@/ui/page';
import { Failure } from '@/ui/states';
import { announce } from '@/ui/toast';
import ui from '@/ui/ui.module.css';
import {
  admitsNone,
  type Lists,
  meant,
  NotUnderstood,
  type Restriction,
  restrictionsOf,
  shown,
  withoutRestriction,
  withRestriction,
} from './restriction';

const NONE: Lists = { allow: [], deny: [], ip_policies: [] };
const LABELS = { allow: 'Allow', deny: 'Deny', ip_policies: 'IP policies' };

function Summary({ restriction }: { restriction: Restriction }) {
  const lists = shown(restriction.lists);
  return (
    <dl className={ui.fields}>
      <dt>Rule</dt>
      <dd>
        {restriction.rule} <span className={ui.dim}>{restriction.phase}</span>
      </dd>
      {(['allow', 'deny', 'ip_policies'] as const).flatMap((key) => {
        const isOpen = key === 'allow' && restriction.lists.allow.length > 0;
        if (lists[key].length === 0 && !isOpen) return [];
        return [
          <dt key={key}>{LABELS[key]}</dt>,
          <dd key={`${key} value`}>
            {lists[key].length === 0
              ? 'All other addresses'
              : lists[key].map((one) => (
                  <Fragment key={one}>
                    <Tag>{one}</Tag>{' '}
                  </Fragment>
                ))}
          </dd>,
        ];
      })}
    </dl>
  );
}

/** What can be done with the restrictions of a policy. */
function read(policy: string): {
  restrictions: Restriction[];
  problem: string;
} {
  try {
    const restrictions = restrictionsOf(policy);
    const [first, ...others] = restrictions;
    if (others.length > 0)
      return {
        restrictions,
        problem: `The policy has ${restrictions.length} restrictions, and this form changes only one.`,
      };
    return {
      restrictions,
      problem: first?.reason
        ? `This form does not change the restriction: ${first.reason}.`
        : '',
    };
  } catch (error) {
    if (!(error instanceof NotUnderstood)) throw error;
    return { restrictions: [], problem: error.message };
  }
}

interface FormProps {
  id: string;
  operation: Operation;
  policy: string;
  phase: string;
  before: Restriction | undefined;
  onClose: () => void;
}

/** Saves a policy, unless it is another one by now. */
function useSave(
  id: string,
  operation: Operation,
  policy: string,
  done: string,
  onClose: () => void,
) {
  const client = useQueryClient();
  return useMutation({
    mutationFn: async (next: string) => {
      const now = await client.fetchQuery({
        ...objectQuery('endpoints', id),
        staleTime: 0,
      });
      if (text(now.traffic_policy) !== policy)
        throw new NotUnderstood(
          'The policy has changed since this page showed it. Cancel shows the new one.',
        );
      return call(
        operation.method,
        operation.path.replace('{id}', encodeURIComponent(id)),
        { traffic_policy: next },
      );
    },
    onSuccess: async () => {
      await client.invalidateQueries({ queryKey: ['endpoints'] });
      announce(done);
      onClose();
    },
  });
}

/** The message of a change that this page refuses, or the failure of one that the server refused. */
function Problem({ error }: { error: Error | null | undefined }) {
  if (!error) return null;
  return error instanceof NotUnderstood ? (
    <p role="alert" className="field-error">
      {error.message}
    </p>
  ) : (
    <Failure error={error} />
  );
}

function attempt(change: () => string): { next: string } | { error: Error } {
  try {
    return { next: change() };
  } catch (error) {
    return { error: error as Error };
  }
}

function RestrictionForm({
  id,
  operation,
  policy,
  phase,
  before,
  onClose,
}: FormProps) {
  const [lists, setLists] = useState(before ? shown(before.lists) : NONE);
  const save = useSave(
    id,
    operation,
    policy,
    'Saved the restriction.',
    onClose,
  );
  const isEmpty = Object.values(lists).every((one) => one.length === 0);
  const result = isEmpty
    ? { error: new NotUnderstood('Enter an address or choose an IP policy.') }
    : attempt(() => withRestriction(policy, phase, meant(lists)));
  const [isTried, setIsTried] = useState(false);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    setIsTried(true);
    if ('next' in result) save.mutate(result.next);
  };
  const set = (key: keyof Lists) => (next: string[]) =>
    setLists((now) => ({ ...now, [key]: next }));
  const addresses = {
    splitChars: [',', ' ', '\n'],
    acceptValueOnBlur: true,
    placeholder: '203.0.113.0/24',
  };
  return (
    <form className={ui.stack} onSubmit={submit} noValidate>
      <TagsInput
        {...addresses}
        label="Allow"
        description="Addresses or CIDRs. If this list and the IP policies are empty, all addresses are allowed."
        value={lists.allow}
        onChange={set('allow')}
        data-autofocus
      />
      <TagsInput
        {...addresses}
        label="Deny"
        description="Addresses or CIDRs. A denied address never passes, even if it is allowed."
        value={lists.deny}
        onChange={set('deny')}
      />
      <ReferenceField
        label="IP policies"
        description="Their rules also allow and deny. A change of a rule takes effect immediately."
        error={undefined}
        withAsterisk={false}
        collection="ip_policies"
        many
        values={lists.ip_policies}
        onChange={(next) =>
          set('ip_policies')(Array.isArray(next) ? next.map(String) : [])
        }
      />
      {/* What changes is below the buttons: leaving a field takes what was typed, and the button must not move under the pointer. */}
      <div className={ui.actions}>
        <Button type="submit" loading={save.isPending}>
          Save restriction
        </Button>
        <Button variant="default" onClick={onClose}>
          Cancel
        </Button>
      </div>
      <Problem
        error={'error' in result ? (isTried ? result.error : null) : save.error}
      />
      {'next' in result ? (
        <CommandsOf
          collection="endpoints"
          operation={operation}
          path={operation.path.replace('{id}', encodeURIComponent(id))}
          id={id}
          body={{ traffic_policy: result.next }}
        />
      ) : null}
    </form>
  );
}

function RemoveButton({
  id,
  operation,
  policy,
}: {
  id: string;
  operation: Operation;
  policy: string;
}) {
  const [isAsking, setIsAsking] = useState(false);
  const save = useSave(id, operation, policy, 'Removed the restriction.', () =>
    setIsAsking(false),
  );
  const result = attempt(() => withoutRestriction(policy));
  return (
    <>
      <Button
        size="xs"
        variant="outline"
        color="red"
        onClick={() => setIsAsking(true)}
      >
        Remove
      </Button>
      <Modal
        opened={isAsking}
        onClose={() => setIsAsking(false)}
        title="Remove the restriction?"
      >
        <div className={ui.stack}>
          <p>
            The policy then rejects no client because of its address. Its other
            rules stay.
          </p>
          <Problem error={'error' in result ? result.error : save.error} />
          <div className={ui.formFoot}>
            <Button variant="default" onClick={() => setIsAsking(false)}>
              Cancel
            </Button>
            <Button
              color="red"
              loading={save.isPending}
              disabled={!('next' in result)}
              onClick={() => 'next' in result && save.mutate(result.next)}
              data-autofocus
            >
              Remove restriction
            </Button>
          </div>
        </div>
      </Modal>
    </>
  );
}

/** Shows which addresses the policy of an endpoint lets in, and changes it. */
export default function RestrictByIp({
  object,
  isWeb,
}: {
  object: JsonObject;
  isWeb: boolean;
}) {
  const [isOpen, setIsOpen] = useState(false);
  const id = text(object.id);
  const policy = text(object.traffic_policy);
  const { restrictions, problem } = read(policy);
  const [restriction] = restrictions;
  const isOfAgent = Boolean(object.tunnel_session);
  const update = useModel().resources.get('endpoints')?.update;
  const operation = isOfAgent ? undefined : update;
  const canChange = operation && !problem;
  const actions =
    canChange && !isOpen ? (
      <>
        {restriction ? (
          <RemoveButton id={id} operation={operation} policy={policy} />
        ) : null}
        <Button size="xs" variant="default" onClick={() => setIsOpen(true)}>
          {restriction ? 'Change' : 'Restrict'}
        </Button>
      </>
    ) : null;
  return (
    <Section title="Restrict by IP" actions={actions}>
      <div className={ui.stack}>
        {restrictions.length === 0 && !problem ? (
          <p className={ui.dim}>
            The traffic policy of this endpoint rejects no client because of its
            address.
          </p>
        ) : null}
        {problem ? (
          <p>
            {problem}{' '}
            {operation
              ? 'Nothing is changed. Edit the policy to change it.'
              : ''}
          </p>
        ) : null}
        {isOpen
          ? null
          : restrictions.map((one) => (
              <Summary key={one.path.join()} restriction={one} />
            ))}
        {restriction && !restriction.reason && admitsNone(restriction.lists) ? (
          <p>
            No address is allowed, so all clients are rejected. If you save
            without an allowed address, all addresses but the denied ones are
            allowed.
          </p>
        ) : null}
        {isOfAgent ? (
          <p className={ui.hint}>
            An agent serves this endpoint and sends its policy. Change it there.
          </p>
        ) : null}
        {canChange && isOpen ? (
          <RestrictionForm
            id={id}
            operation={operation}
            policy={policy}
            phase={isWeb ? 'on_http_request' : 'on_tcp_connect'}
            before={restriction}
            onClose={() => setIsOpen(false)}
          />
        ) : null}
      </div>
    </Section>
  );
}
