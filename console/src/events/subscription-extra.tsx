import { useQuery } from '@tanstack/react-query';
import { call } from '@/api/http';
import { type JsonObject, isObject, text } from '@/api/json';
import { eventTitle } from '@/api/words';
import { Link } from '@/routing/link';
import { useNameOf } from '@/resources/name-of-id';
import { items } from '@/resources/names';
import { Section, Tag } from '@/ui/page';
import { Failure, Loading } from '@/ui/states';
import ui from '@/ui/ui.module.css';

function Destination({ id, isOk }: { id: string; isOk: boolean }) {
  const name = useNameOf(id);
  return (
    <li>
      <Link
        to="/$collection/$id"
        params={{ collection: 'event_destinations', id }}
      >
        {name}
      </Link>{' '}
      <Tag tone={isOk ? 'ok' : 'bad'}>
        {isOk ? 'Gets its events' : 'Gets nothing'}
      </Tag>
      {isOk ? null : (
        <span className={ui.sub}>
          The owner of the subscription may not use this destination: a grant is
          missing or has ended.
        </span>
      )}
    </li>
  );
}

/** Where the events go, and whether they get there. */
function Delivery({ id }: { id: string }) {
  const health = useQuery({
    queryKey: ['event_subscriptions', 'health', id],
    queryFn: ({ signal }) =>
      call(
        'GET',
        `/event_subscriptions/${encodeURIComponent(id)}/health`,
        undefined,
        signal,
      ),
  });
  const found = health.data ? items(health.data, 'destinations') : [];
  return (
    <Section title="Delivery">
      {health.isPending ? <Loading /> : null}
      {health.error ? <Failure error={health.error} /> : null}
      {health.data && found.length === 0 ? (
        <p className={ui.dim}>
          No destination gets these events yet. Edit the subscription to choose
          some.
        </p>
      ) : null}
      <ul className={ui.items}>
        {found.map((one) => (
          <Destination
            key={text(one.id)}
            id={text(one.id)}
            isOk={one.state === 'ok'}
          />
        ))}
      </ul>
    </Section>
  );
}

/** The kinds of events that are wanted, each with its condition and its fields. */
function Wanted({ object }: { object: JsonObject }) {
  const sources = Array.isArray(object.sources)
    ? object.sources.filter(isObject)
    : [];
  return (
    <Section title="Events">
      {sources.length === 0 ? (
        <p className={ui.dim}>
          This subscription wants no events yet. Edit it to add kinds.
        </p>
      ) : null}
      <ul className={ui.items}>
        {sources.map((source) => {
          const fields = Array.isArray(source.fields) ? source.fields : [];
          return (
            <li key={text(source.type)}>
              <strong>{eventTitle(text(source.type))}</strong>{' '}
              <code>{text(source.type)}</code>
              {source.filter ? (
                <span className={ui.sub}>
                  where <code>{text(source.filter)}</code>
                </span>
              ) : null}
              {fields.length > 0 ? (
                <span className={ui.sub}>{fields.map(text).join(', ')}</span>
              ) : null}
            </li>
          );
        })}
      </ul>
    </Section>
  );
}

export default function SubscriptionExtra({ object }: { object: JsonObject }) {
  return (
    <>
      <Wanted object={object} />
      <Delivery id={text(object.id)} />
    </>
  );
}
