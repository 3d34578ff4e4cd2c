import { useMutation } from '@tanstack/react-query';
import { Suspense, useEffect, useMemo, useState } from 'react';
import { lazyPart } from '@/api/load';
import { call } from '@/api/http';
import type { JsonObject } from '@/api/json';
import { Button } from '@/ui/button';
import { Choice } from '@/ui/choice';
import { Section } from '@/ui/page';
import { Empty, Failure, Loading } from '@/ui/states';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';

const CodeEditor = lazyPart(() => import('@/ui/code-editor'));

interface Rule {
  phase: string;
  number: number;
  name: string;
  result: 'match' | 'no_match' | 'unknown' | 'reject' | 'not_reached';
  unknown: string[];
  actions: string[];
}

interface Past {
  event_id: string;
  event_timestamp: string;
  method: string;
  url: string;
  status_code: number | null;
  captured: boolean;
  redacted: string[];
  matches: boolean | null;
  rules: Rule[];
  ended_by: {
    phase: string;
    number: number;
    action: string;
    certain: boolean;
  } | null;
}

interface Run {
  requests: Past[];
  complete: boolean;
}

const TONES = {
  match: 'ok',
  no_match: undefined,
  unknown: 'warn',
  reject: 'bad',
  not_reached: undefined,
};
const WORDS = {
  match: 'matches',
  no_match: 'does not match',
  unknown: 'unknown',
  reject: 'rejects: a condition fails',
  not_reached: 'not reached',
};

function Rules({ past }: { past: Past }) {
  return (
    <ul className={ui.items}>
      {past.rules.map((rule) => (
        <li key={`${rule.phase} ${rule.number}`}>
          <span className={ui.tag} data-tone={TONES[rule.result]}>
            {WORDS[rule.result]}
          </span>{' '}
          {rule.name || `rule ${rule.number}`}{' '}
          <span
            className={ui.dim}
          >{`${rule.phase}: ${rule.actions.join(', ')}`}</span>
          {rule.unknown.length > 0 ? (
            <span
              className={ui.sub}
            >{`not known: ${rule.unknown.join(', ')}`}</span>
          ) : null}
        </li>
      ))}
    </ul>
  );
}

function outcome({ matches, ended_by: end, rules }: Past): string {
  if (matches !== null) return matches ? 'matches' : 'does not match';
  if (rules.length === 0) return 'no rules';
  if (!end) return 'is forwarded';
  return `${end.certain ? 'ends' : 'may end'} with ${end.action}`;
}

const KINDS = [
  { value: 'policy', label: 'Traffic policy' },
  { value: 'filter', label: 'Filter' },
];

/** Evaluates a policy or a filter against the recent requests of an endpoint. */
export function DryRun({
  id,
  policy,
  isBeside = false,
}: {
  id: string;
  policy: string;
  /** Beside an editor, whose policy it evaluates. */
  isBeside?: boolean;
}) {
  const [kind, setKind] = useState('policy');
  const [source, setSource] = useState({ policy, filter: '' });
  const run = useMutation({
    mutationFn: async () => {
      const body: JsonObject =
        kind === 'policy'
          ? { traffic_policy: isBeside ? policy : source.policy }
          : { filter: source.filter };
      return (await call(
        'POST',
        `/endpoints/${id}/dry_run`,
        body,
      )) as unknown as Run;
    },
  });
  const { mutate } = run;
  useEffect(() => {
    // It was opened to be run.
    if (isBeside) mutate();
  }, [isBeside, mutate]);
  const isPolicy = kind === 'policy';
  const service = useMemo(
    () => ({ place: () => ({ endpoint_id: id }), onProblems: () => {} }),
    [id],
  );
  return (
    <Section title="Dry run">
      <div className={ui.stack}>
        <p className={ui.hint}>
          Evaluates conditions against the most recent kept requests. No action
          runs, and nothing is saved.
        </p>
        {isBeside ? null : (
          <Choice
            label="What to evaluate"
            value={kind}
            onChange={setKind}
            options={KINDS}
          />
        )}
        <Suspense fallback={<Loading />}>
          {isBeside ? null : isPolicy ? (
            <CodeEditor
              key="policy"
              label="Traffic policy to try"
              language="policy"
              service={service}
              value={source.policy}
              onChange={(next) =>
                setSource((now) => ({ ...now, policy: next }))
              }
            />
          ) : (
            <CodeEditor
              key="filter"
              label="Filter to try"
              language="cel"
              value={source.filter}
              onChange={(next) =>
                setSource((now) => ({ ...now, filter: next }))
              }
            />
          )}
        </Suspense>
        <div className={ui.actions}>
          <Button
            variant="default"
            loading={run.isPending}
            onClick={() => run.mutate()}
          >
            Run against recent requests
          </Button>
        </div>
        {run.error ? <Failure error={run.error} /> : null}
        {run.data && run.data.requests.length === 0 ? (
          <Empty
            title="No kept requests"
            text="The endpoint has had no requests that are still kept."
          />
        ) : null}
        {run.data && run.data.requests.length > 0 ? (
          <ul className={ui.items} aria-label="Results">
            {run.data.requests.map((past) => (
              <li key={past.event_id}>
                <details>
                  <summary>
                    <code
                      style={{ overflowWrap: 'anywhere' }}
                    >{`${past.method} ${past.url}`}</code>{' '}
                    <span className={ui.dim}>
                      {past.status_code ?? 'no response'} ·{' '}
                      <Time value={past.event_timestamp} />
                    </span>{' '}
                    <strong>{outcome(past)}</strong>
                  </summary>
                  {past.captured ? null : (
                    <p className={ui.hint}>
                      Not captured: header values are in lower case.
                    </p>
                  )}
                  {past.redacted.length > 0 ? (
                    <p
                      className={ui.hint}
                    >{`Redacted: ${past.redacted.join(', ')}`}</p>
                  ) : null}
                  <Rules past={past} />
                </details>
              </li>
            ))}
          </ul>
        ) : null}
        {run.data && !run.data.complete ? (
          <p className={ui.hint}>The time was not enough for all requests.</p>
        ) : null}
      </div>
    </Section>
  );
}
