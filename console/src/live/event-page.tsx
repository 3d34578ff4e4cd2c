import { useQuery } from '@tanstack/react-query';
import { Link } from '@/routing/link';
import { useNavigate, useParams } from '@/routing/view';
import { ApiError } from '@/api/error';
import { call } from '@/api/http';
import { isObject } from '@/api/json';
import { Icon } from '@/ui/icons';
import { LinkButton } from '@/ui/link-button';
import { Page } from '@/ui/page';
import { Empty, Failure, Loading } from '@/ui/states';
import ui from '@/ui/ui.module.css';
import { type KeptEvent, keptEvent } from './entry';
import { EventDetail } from './event-detail';
import { Narrow } from './narrow';
import { logOf } from './where';

/** An event is kept about a second after its request: until then its page asks again. */
const AGAIN_MS = 2000;
const TRIES = 3;

const isGone = (error: unknown): error is ApiError =>
  error instanceof ApiError && error.status === 404;

/** One kept event, at an address that can be passed on. */
export default function EventPage() {
  const { id } = useParams({ from: '/events/$id' });
  const navigate = useNavigate();
  const found = useQuery({
    queryKey: ['events', 'one', id],
    staleTime: Infinity,
    retry: (count, error) => isGone(error) && count < TRIES,
    retryDelay: AGAIN_MS,
    queryFn: async ({ signal }): Promise<KeptEvent> => {
      const entry = await call(
        'GET',
        `/events/${encodeURIComponent(id)}`,
        undefined,
        signal,
      );
      return keptEvent(isObject(entry) ? entry : {}, 1);
    },
  });
  const above = (
    <Link className={ui.back} to="/events" search={{}}>
      <Icon name="back" size={14} />
      Events
    </Link>
  );
  return (
    <Page title="Event" above={above}>
      {found.isPending ? <Loading /> : null}
      {isGone(found.error) ? (
        <Empty
          title="It is not there"
          text={
            <>
              No kept event has the ID <code>{id}</code>. Its retention may have
              ended.
            </>
          }
          action={
            <LinkButton variant="default" to="/events" search={{}}>
              Search kept events
            </LinkButton>
          }
        />
      ) : null}
      {found.error && !isGone(found.error) ? (
        <Failure error={found.error} retry={() => void found.refetch()} />
      ) : null}
      {found.data ? (
        <section className={ui.section}>
          <Narrow
            value={({ word, cel }) =>
              void navigate({
                to: logOf(found.data.event_type),
                search: cel ? { filter: cel } : { q: word },
              })
            }
          >
            <EventDetail event={found.data} isPage />
          </Narrow>
        </section>
      ) : null}
    </Page>
  );
}
