import { Modal } from '@mantine/core';
import { useMutation, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { useModel } from '@/api/document';
import { call } from '@/api/http';
import { text } from '@/api/json';
import type { Operation } from '@/api/model';
import { humanize } from '@/api/words';
import { pathOf } from '@/resources/names';
import { Button } from '@/ui/button';
import { Failure } from '@/ui/states';
import { announce } from '@/ui/toast';
import ui from '@/ui/ui.module.css';
import type { LiveEvent } from './entry';
import { NoWayBackError, wayBack } from './versions';

/** Goes back to the state of an object at an event, after the fields were shown. Nothing where that cannot be. */
export function RestoreVersion({ event }: { event: LiveEvent }) {
  const { resources } = useModel();
  const id = text(event.object.id);
  const collection = pathOf(id)?.split('/')[1]?.replaceAll('.', '/');
  const resource = collection ? resources.get(collection) : undefined;
  const isVersion = /_(created|updated)\./.test(event.event_type);
  return resource?.update && isVersion ? (
    <Restore
      id={id}
      eventId={event.event_id}
      update={resource.update}
      collection={resource.name}
    />
  ) : null;
}

function Restore({
  id,
  eventId,
  update,
  collection,
}: {
  id: string;
  eventId: string;
  update: Operation;
  collection: string;
}) {
  const [isOpen, setOpen] = useState(false);
  const client = useQueryClient();
  const found = useMutation({
    mutationFn: () => wayBack(id, eventId, update.body?.properties ?? {}),
  });
  const restored = useMutation({
    mutationFn: () =>
      call(
        update.method,
        update.path.replace('{id}', encodeURIComponent(id)),
        found.data,
        undefined,
        { 'culvert-cause': eventId },
      ),
    onSuccess: async () => {
      announce('Restored.');
      setOpen(false);
      await client.invalidateQueries({ queryKey: [collection] });
    },
  });
  const open = () => {
    restored.reset();
    found.mutate(undefined, { onSettled: () => setOpen(true) });
  };
  const refusal =
    found.error instanceof NoWayBackError ? found.error.message : undefined;
  return (
    <div>
      <Button
        size="xs"
        variant="default"
        loading={found.isPending}
        onClick={open}
      >
        Restore this version
      </Button>
      <Modal
        opened={isOpen}
        onClose={() => setOpen(false)}
        title="Restore this version?"
      >
        <div className={ui.stack}>
          {refusal ? <p role="alert">{refusal}</p> : null}
          {found.error && !refusal ? <Failure error={found.error} /> : null}
          {found.data ? (
            <p>
              An update sets these fields as they were right after this event:{' '}
              {Object.keys(found.data).map(humanize).join(', ')}.
            </p>
          ) : null}
          {restored.error ? <Failure error={restored.error} /> : null}
          <Button
            disabled={!found.data}
            loading={restored.isPending}
            onClick={() => restored.mutate()}
            data-autofocus
          >
            Restore
          </Button>
        </div>
      </Modal>
    </div>
  );
}
