import { MultiSelect, TextInput } from '@mantine/core';
import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { type FormEvent, useState } from 'react';
import { Button } from '@/ui/button';
import type { EventReplayCreate } from '../../generated/api';
import { api, body } from '@/api/client';
import { useModel } from '@/api/document';
import { ApiError } from '@/api/error';
import { eventTitle } from '@/api/words';
import { Section, Tag } from '@/ui/page';
import { Failure } from '@/ui/states';
import ui from '@/ui/ui.module.css';
import { replayQuery } from './queries';

/** A local time of a date field as the API wants it; ids of events stay. */
function moment(value: string): string {
  const date = new Date(value);
  return /^\d{4}-/.test(value) && !Number.isNaN(date.getTime())
    ? date.toISOString()
    : value;
}

function State({ id }: { id: string }) {
  const replay = useQuery(replayQuery(id));
  if (replay.error)
    return replay.error instanceof ApiError &&
      replay.error.status === 404 ? null : (
      <Failure error={replay.error} />
    );
  if (!replay.data) return null;
  const { state, percent, from, to } = replay.data;
  return (
    <div role="status">
      <p>
        <Tag tone={state === 'done' ? 'ok' : 'accent'}>
          {state === 'done' ? 'Done' : `${percent} %`}
        </Tag>{' '}
        The last replay was of events from {from}
        {to ? ` to ${to}` : ' on'}.
      </p>
      {state === 'running' ? (
        <progress
          max={100}
          value={percent}
          aria-label="Progress of the replay"
        />
      ) : null}
    </div>
  );
}

/** Sends kept events to the destination again. */
export function Replay({ id }: { id: string }) {
  const [open, setOpen] = useState(false);
  const [from, setFrom] = useState('');
  const [to, setTo] = useState('');
  const [types, setTypes] = useState<EventReplayCreate['event_types']>([]);
  const kinds = useModel().eventTypes.map((type) => ({
    value: type,
    label: eventTitle(type),
  }));
  const client = useQueryClient();
  const start = useMutation({
    mutationFn: async () =>
      body(
        await api.POST('/event_destinations/{id}/replay', {
          params: { path: { id } },
          body: {
            from: moment(from),
            ...(to ? { to: moment(to) } : {}),
            ...(types?.length ? { event_types: types } : {}),
          },
        }),
      ),
    onSuccess: async () => {
      setOpen(false);
      await client.invalidateQueries({ queryKey: replayQuery(id).queryKey });
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    start.mutate();
  };
  return (
    <Section
      title="Replay"
      actions={
        open ? null : (
          <Button size="xs" variant="default" onClick={() => setOpen(true)}>
            Replay events
          </Button>
        )
      }
    >
      <State id={id} />
      {open ? (
        <form onSubmit={submit} className={ui.stack}>
          <TextInput
            label="From"
            type="datetime-local"
            step={1}
            value={from}
            onChange={(event) => setFrom(event.currentTarget.value)}
            required
          />
          <TextInput
            label="To"
            description="Empty for the last event there is."
            type="datetime-local"
            step={1}
            value={to}
            onChange={(event) => setTo(event.currentTarget.value)}
          />
          <MultiSelect
            label="Kinds"
            description="Empty for those that the destination's subscriptions want."
            data={kinds}
            searchable
            clearable
            value={types ?? []}
            onChange={(next) =>
              setTypes(next as EventReplayCreate['event_types'])
            }
          />
          {start.error ? <Failure error={start.error} /> : null}
          <div className={ui.actions}>
            <Button
              type="submit"
              size="xs"
              loading={start.isPending}
              disabled={!from}
            >
              Start
            </Button>
            <Button size="xs" variant="default" onClick={() => setOpen(false)}>
              Cancel
            </Button>
          </div>
        </form>
      ) : (
        <p className={ui.dim}>
          Kept events can be sent again, under their first IDs: after a
          destination lost some, or to fill a new one.
        </p>
      )}
    </Section>
  );
}
