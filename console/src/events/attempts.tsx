import { useQuery } from '@tanstack/react-query';
import { Section, Tag } from '@/ui/page';
import { Failure, Loading } from '@/ui/states';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import { attemptsQuery } from './queries';

/** The last sends to a destination, and what it answered to those that failed. */
export function Attempts({ id }: { id: string }) {
  const page = useQuery(attemptsQuery(id));
  const attempts = page.data?.attempts ?? [];
  return (
    <Section title="Last attempts">
      {page.isPending ? <Loading /> : null}
      {page.error ? <Failure error={page.error} /> : null}
      {page.data && attempts.length === 0 ? (
        <p className={ui.dim}>None since the server started.</p>
      ) : null}
      {attempts.length > 0 ? (
        <div
          className={ui.tableBox}
          role="region"
          aria-label="Last attempts"
          tabIndex={0}
        >
          <table className={ui.table}>
            <thead>
              <tr>
                <th scope="col">Time</th>
                <th scope="col">Outcome</th>
                <th scope="col">Status</th>
                <th scope="col">Attempt</th>
                <th scope="col">Events</th>
                <th scope="col">First event</th>
                <th scope="col">Duration</th>
                <th scope="col">Node</th>
                <th scope="col">Response</th>
              </tr>
            </thead>
            <tbody>
              {attempts.map((one, index) => (
                <tr key={`${one.node} ${one.at} ${index}`}>
                  <td>
                    <Time value={one.at} />
                  </td>
                  <td data-label="Outcome">
                    <Tag tone={one.outcome === 'delivered' ? 'ok' : 'bad'}>
                      {one.outcome}
                    </Tag>
                  </td>
                  <td data-label="Status">{one.status ?? ''}</td>
                  <td data-label="Attempt">{one.attempt}</td>
                  <td data-label="Events">{one.events.toLocaleString()}</td>
                  <td data-label="First event">{one.event_id ?? ''}</td>
                  <td data-label="Duration">
                    {one.duration_ms.toLocaleString()} ms
                  </td>
                  <td data-label="Node">{one.node}</td>
                  <td data-label="Response">{one.text}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
    </Section>
  );
}
