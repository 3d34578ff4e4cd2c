import { useMutation, useQueryClient } from '@tanstack/react-query';
import { call } from '@/api/http';
import { type JsonObject, text } from '@/api/json';
import { useModel } from '@/api/document';
import { Button } from '@/ui/button';
import { Section, Tag } from '@/ui/page';
import { Failure } from '@/ui/states';
import { Time } from '@/ui/time';
import { announce } from '@/ui/toast';
import ui from '@/ui/ui.module.css';
import { inWords } from './condition';

const HOUR = 3_600_000;

/** What a rule watches, why it could not be evaluated, and its silence. */
export default function RuleExtra({ object }: { object: JsonObject }) {
  const client = useQueryClient();
  const resource = useModel().resources.get('alert_rules');
  const id = text(object.id);
  const until = text(object.silenced_until);
  const isSilenced = until !== '' && Date.parse(until) > Date.now();
  const silence = useMutation({
    mutationFn: (end: string) =>
      call('PATCH', `/alert_rules/${encodeURIComponent(id)}`, {
        silenced_until: end,
      }),
    onSuccess: async (_, end) => {
      announce(end ? 'The rule is silenced.' : 'The silence is over.');
      await client.invalidateQueries({ queryKey: ['alert_rules'] });
    },
  });
  const button = (label: string, hours: number) => (
    <Button
      size="xs"
      variant="default"
      loading={silence.isPending}
      onClick={() =>
        silence.mutate(
          hours > 0 ? new Date(Date.now() + hours * HOUR).toISOString() : '',
        )
      }
    >
      {label}
    </Button>
  );
  return (
    <Section
      title="What it watches"
      actions={
        resource?.update ? (
          <>
            {isSilenced ? button('End the silence', 0) : null}
            {button('Silence for an hour', 1)}
            {button('Silence for a day', 24)}
          </>
        ) : null
      }
    >
      <p>{inWords(object.condition)}</p>
      {isSilenced ? (
        <p>
          <Tag tone="warn">Silenced</Tag> until <Time value={until} />
        </p>
      ) : null}
      {text(object.error) ? (
        <p>
          <Tag tone="bad">Not evaluated</Tag>{' '}
          <span className={ui.dim}>{text(object.error)}</span>
        </p>
      ) : null}
      {silence.error ? <Failure error={silence.error} /> : null}
    </Section>
  );
}
