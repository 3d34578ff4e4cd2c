import { useQuery } from '@tanstack/react-query';
import { Link } from '@/routing/link';
import { api, body } from '@/api/client';
import { LinkButton } from '@/ui/link-button';
import { Section } from '@/ui/page';
import { Failure } from '@/ui/states';
import ui from '@/ui/ui.module.css';

/** Which subscriptions fill this destination. */
export function SubscriptionsTo({ id }: { id: string }) {
  const list = useQuery({
    queryKey: ['event_subscriptions', 'all'],
    queryFn: async ({ signal }) =>
      body(
        await api.GET('/event_subscriptions', {
          params: { query: { limit: 100 } },
          signal,
        }),
      ),
  });
  const mine =
    list.data?.event_subscriptions.filter((one) =>
      one.destinations.some((destination) => destination.id === id),
    ) ?? [];
  return (
    <Section
      title="Receives"
      actions={
        <LinkButton
          size="xs"
          variant="default"
          to="/$collection/new"
          params={{ collection: 'event_subscriptions' }}
          search={{}}
        >
          Add a subscription
        </LinkButton>
      }
    >
      {list.error ? <Failure error={list.error} /> : null}
      {list.data && mine.length === 0 ? (
        <p className={ui.dim}>
          Nothing: no subscription names this destination.
        </p>
      ) : null}
      <ul className={ui.items}>
        {mine.map((one) => (
          <li key={one.id}>
            <Link
              to="/$collection/$id"
              params={{ collection: 'event_subscriptions', id: one.id }}
            >
              {one.description || one.id}
            </Link>
            <span className={ui.sub}>
              {one.sources.length === 1
                ? one.sources[0]?.type
                : `${one.sources.length} kinds of events`}
            </span>
          </li>
        ))}
      </ul>
    </Section>
  );
}
