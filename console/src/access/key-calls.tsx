import { useQuery } from '@tanstack/react-query';
import { call } from '@/api/http';
import { type Json, type JsonObject, isObject, text } from '@/api/json';
import { Section } from '@/ui/page';
import { Failure, Loading } from '@/ui/states';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';

const DAYS = 30;
const DAY = 86_400;

interface Count {
  name: string;
  count: number;
}

const callsOf = (values: Json | undefined): JsonObject | undefined =>
  isObject(values) && isObject(values.calls) ? values.calls : undefined;

function operationsOf(values: Json | undefined): Count[] {
  const counts = callsOf(values)?.by_operation;
  if (!isObject(counts)) return [];
  return Object.entries(counts)
    .map(([name, count]) => ({ name, count: Number(count) }))
    .sort((one, other) => other.count - one.count);
}

/** How often a key was used in the last month: by operation, and by day. */
export function KeyCalls({ id }: { id: string }) {
  const answer = useQuery({
    queryKey: ['api_keys', 'calls', id],
    queryFn: async ({ signal }) => {
      const from = new Date(Date.now() - DAYS * DAY * 1000).toISOString();
      const query = new URLSearchParams({
        subject: 'key',
        id,
        from,
        step: String(DAY),
      });
      const path = `/statistics?${query.toString()}`;
      return (await call('GET', path, undefined, signal)) as JsonObject;
    },
  });
  const operations = operationsOf(answer.data?.total);
  const points = Array.isArray(answer.data?.points)
    ? answer.data.points.filter(isObject)
    : [];
  return (
    <Section title="Calls in 30 days">
      {answer.isPending ? <Loading /> : null}
      {answer.error ? <Failure error={answer.error} /> : null}
      {answer.data && operations.length === 0 ? <p>None.</p> : null}
      {operations.length > 0 ? (
        <>
          <dl className={ui.fields} aria-label="Calls by operation">
            {operations.map(({ name, count }) => [
              <dt key={name}>
                <code>{name}</code>
              </dt>,
              <dd key={`${name} count`}>{count.toLocaleString('en')}</dd>,
            ])}
          </dl>
          <dl className={ui.fields} aria-label="Calls by day">
            {points.map((point) => [
              <dt key={text(point.at)}>
                <Time value={text(point.at)} />
              </dt>,
              <dd key={`${text(point.at)} count`}>
                {Number(callsOf(point)?.calls ?? 0).toLocaleString('en')}
              </dd>,
            ])}
          </dl>
        </>
      ) : null}
    </Section>
  );
}
