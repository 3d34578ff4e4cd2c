import { Checkbox } from '@mantine/core';
import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query';
import { useState } from 'react';
import { api, body } from '@/api/client';
import { counted } from '@/api/words';
import { Button } from '@/ui/button';
import { Section, Tag } from '@/ui/page';
import { Failure, Loading } from '@/ui/states';
import { Time } from '@/ui/time';
import { announce } from '@/ui/toast';
import ui from '@/ui/ui.module.css';
import { deadLettersQuery } from './queries';

/** What a destination refused for good, why, and the button that sends it again. */
export function DeadLetters({ id }: { id: string }) {
  const [before, setBefore] = useState<string>();
  const [picked, setPicked] = useState<string[]>([]);
  const client = useQueryClient();
  const page = useQuery(deadLettersQuery(id, before));
  const redrive = useMutation({
    mutationFn: async (ids: string[]) =>
      body(
        await api.POST('/event_destinations/{id}/dead_letters/redrive', {
          params: { path: { id } },
          body: { ids },
        }),
      ),
    onSuccess: async ({ redriven }) => {
      announce(`${counted(redriven, 'dead letter')} sent to the queue again.`);
      setPicked([]);
      await client.invalidateQueries({ queryKey: ['event_destinations'] });
    },
  });
  const letters = page.data?.dead_letters ?? [];
  const next = page.data?.next_page_uri ? letters.at(-1)?.id : undefined;
  const toggle = (letter: string, on: boolean) =>
    setPicked(
      on ? [...picked, letter] : picked.filter((one) => one !== letter),
    );
  const actions =
    letters.length > 0 ? (
      <>
        {picked.length > 0 ? (
          <Button
            size="xs"
            variant="default"
            onClick={() => redrive.mutate(picked)}
          >
            Send {picked.length} again
          </Button>
        ) : null}
        <Button
          size="xs"
          loading={redrive.isPending}
          onClick={() => redrive.mutate([])}
        >
          Send all again
        </Button>
      </>
    ) : null;
  return (
    <Section title="Dead letters" actions={actions}>
      {page.isPending ? <Loading /> : null}
      {page.error ? <Failure error={page.error} /> : null}
      {redrive.error ? <Failure error={redrive.error} /> : null}
      {page.data && letters.length === 0 ? (
        <p className={ui.dim}>
          None. Events that a destination refuses for good are kept here for
          seven days.
        </p>
      ) : null}
      {letters.map((letter) => (
        <div key={letter.id} className={ui.picked}>
          <Checkbox
            size="xs"
            aria-label={`Pick dead letter ${letter.id}`}
            checked={picked.includes(letter.id)}
            onChange={(event) => toggle(letter.id, event.currentTarget.checked)}
          />
          <details className={ui.commands}>
            <summary>
              <Tag tone="bad">{letter.reason.class}</Tag> {letter.reason.text}{' '}
              <span className={ui.dim}>({letter.reason.code})</span>{' '}
              <span className={ui.dim}>
                {counted(letter.events.length, 'event')},{' '}
                {counted(letter.attempts, 'attempt')},{' '}
                <Time value={letter.buried_at} relative />
              </span>
            </summary>
            <pre
              className={ui.long}
              tabIndex={0}
              role="group"
              aria-label="Its events"
            >
              {letter.events
                .map((event) => JSON.stringify(event, null, 2))
                .join('\n')}
            </pre>
          </details>
        </div>
      ))}
      {before || next ? (
        <div className={ui.pager}>
          <Button
            size="xs"
            variant="default"
            disabled={!before}
            onClick={() => setBefore(undefined)}
          >
            Newest
          </Button>
          <Button
            size="xs"
            variant="default"
            disabled={!next}
            onClick={() => setBefore(next)}
          >
            Older
          </Button>
        </div>
      ) : null}
    </Section>
  );
}
