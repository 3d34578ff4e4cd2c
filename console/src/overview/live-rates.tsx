import { useEffect, useState } from 'react';
import { useTail } from '@/live/use-tail';
import { LinkButton } from '@/ui/link-button';
import { Section, Tag } from '@/ui/page';
import { Rates, SECONDS, type Second } from './rates';
import css from './overview.module.css';

const TYPES = ['http_request_complete.v0'];
const FIELDS = ['http.response.status_code'];
const HEIGHT = 90;

function Chart({ series }: { series: Second[] }) {
  const top = Math.max(4, ...series.map(({ requests }) => requests));
  const width = 600 / SECONDS;
  const bar = (value: number) => (value / top) * HEIGHT;
  return (
    <svg
      viewBox={`0 0 600 ${HEIGHT}`}
      preserveAspectRatio="none"
      className={css.chart}
      role="img"
      aria-label={`Requests in each of the last sixty seconds, ${top} at most`}
    >
      {series.map(({ requests, errors }, index) => (
        <g key={index}>
          <rect
            x={index * width}
            y={HEIGHT - bar(requests)}
            width={width - 2}
            height={bar(requests)}
            className={css.good}
          />
          <rect
            x={index * width}
            y={HEIGHT - bar(errors)}
            width={width - 2}
            height={bar(errors)}
            className={css.bad}
          />
        </g>
      ))}
    </svg>
  );
}

/** Requests a second and the share of server errors, counted from the live stream. */
export function LiveRates({ onRequest }: { onRequest: () => void }) {
  const [rates] = useState(() => new Rates());
  const [series, setSeries] = useState(() => rates.series());
  const tail = useTail({ types: TYPES, fields: FIELDS, onEvents: rates.take });
  useEffect(() => {
    const timer = setInterval(() => setSeries(rates.series()), 1000);
    return () => clearInterval(timer);
  }, [rates]);
  const seen = rates.total > 0;
  useEffect(() => {
    if (seen) onRequest();
  }, [seen, onRequest]);
  const last = series.slice(-10);
  const requests = last.reduce((sum, one) => sum + one.requests, 0);
  const errors = last.reduce((sum, one) => sum + one.errors, 0);
  return (
    <Section
      title="Traffic now"
      actions={
        <>
          {tail.state === 'live' ? (
            <Tag tone="ok">Live</Tag>
          ) : (
            <Tag tone="warn">Connecting</Tag>
          )}
          <LinkButton size="xs" variant="default" to="/traffic" search={{}}>
            Watch requests
          </LinkButton>
        </>
      }
    >
      <div className={css.figures}>
        <div>
          <b>
            {(requests / 10).toLocaleString(undefined, {
              maximumFractionDigits: 1,
            })}
          </b>
          <span>requests a second</span>
        </div>
        <div>
          <b>
            {requests === 0
              ? '–'
              : `${((errors / requests) * 100).toFixed(1)} %`}
          </b>
          <span>server errors</span>
        </div>
        {tail.dropped > 0 ? (
          <div>
            <b>{tail.dropped.toLocaleString()}</b>
            <span>dropped</span>
          </div>
        ) : null}
      </div>
      {series.some((second) => second.requests > 0) ? (
        <Chart series={series} />
      ) : (
        <p className={css.quiet}>No request in the last 60 seconds.</p>
      )}
      <p className={css.axis}>
        <span>60 seconds ago</span>
        <span>now</span>
      </p>
    </Section>
  );
}
