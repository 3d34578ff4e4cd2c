import { Navigate, useSearch } from '@/routing/view';
import { useModel } from '@/api/document';
import { LinkButton } from '@/ui/link-button';
import { Page, Section } from '@/ui/page';
import ui from '@/ui/ui.module.css';
import { forPage, pageOf, searchOf } from './where';

const LOGS = [
  {
    title: 'Traffic',
    to: '/traffic',
    text: 'Requests and connections, when they end.',
  },
  {
    title: 'Audit',
    to: '/audit',
    text: 'Changes of the configuration, and agent sessions, with who made them.',
  },
] as const;

/** Where the events are. A search that only one of the pages can answer goes there. */
export default function EventsPage() {
  const search = useSearch(searchOf);
  const { resources } = useModel();
  const to = pageOf(search);
  const wanted = forPage(search);
  if (to) return <Navigate to={to} search={wanted} />;
  const hasSearch = Object.values(wanted).some(Boolean);
  return (
    <Page
      title="Events"
      text="Each request, connection and change is an event. Two logs keep them, and destinations receive them."
    >
      {LOGS.map((log) => (
        <Section
          key={log.to}
          title={log.title}
          actions={
            <LinkButton size="xs" variant="default" to={log.to} search={wanted}>
              {hasSearch ? `Search ${log.title}` : log.title}
            </LinkButton>
          }
        >
          <p className={ui.dim}>{log.text}</p>
        </Section>
      ))}
      {resources.has('event_destinations') ? (
        <Section
          title="Destinations"
          actions={
            <>
              <LinkButton
                size="xs"
                variant="default"
                to="/$collection"
                params={{ collection: 'event_destinations' }}
                search={{}}
              >
                Destinations
              </LinkButton>
              {resources.has('event_subscriptions') ? (
                <LinkButton
                  size="xs"
                  variant="default"
                  to="/$collection"
                  params={{ collection: 'event_subscriptions' }}
                  search={{}}
                >
                  Subscriptions
                </LinkButton>
              ) : null}
            </>
          }
        >
          <p className={ui.dim}>
            Systems that receive events, and what each of them subscribes to.
          </p>
        </Section>
      ) : null}
    </Page>
  );
}
