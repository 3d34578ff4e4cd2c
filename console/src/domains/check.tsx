import { useMutation } from '@tanstack/react-query';
import { call } from '@/api/http';
import { type JsonObject, isObject, text } from '@/api/json';
import type { Operation } from '@/api/model';
import { Button } from '@/ui/button';
import { Prose, Section, Tag, type Tone } from '@/ui/page';
import { Failure } from '@/ui/states';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';

const TONES: Record<string, Tone> = { ok: 'ok', warn: 'warn', fail: 'bad' };
const RESULTS: Record<string, string> = {
  ok: 'In order',
  warn: 'Look at it',
  fail: 'Fails',
};
const TITLES: Record<string, string> = {
  name: 'The name leads here',
  ports: 'Public ports',
  authority: 'The server reaches the certificate authority',
  dns_provider: 'DNS records',
  validation: 'The certificate authority reaches the name',
};

/** Checks on the server what the certificate needs, and shows what was seen. */
export function Check({ operation, id }: { operation: Operation; id: string }) {
  const run = useMutation({
    mutationFn: () =>
      call(
        operation.method,
        operation.path.replace('{id}', encodeURIComponent(id)),
      ),
  });
  const answer = isObject(run.data) ? run.data : undefined;
  const checks = Array.isArray(answer?.checks)
    ? answer.checks.filter(isObject)
    : [];
  const button = (
    <Button
      variant="default"
      loading={run.isPending}
      onClick={() => run.mutate()}
    >
      {answer ? 'Check again' : 'Check'}
    </Button>
  );
  return (
    <Section title="Checks" actions={button}>
      {run.error ? <Failure error={run.error} /> : null}
      {answer ? (
        <>
          <ul className={ui.items} aria-label="Results">
            {checks.map((one) => (
              <Result key={text(one.check)} result={one} />
            ))}
          </ul>
          <p className={ui.dim} role="status">
            Checked by {text(answer.node)}{' '}
            <Time value={text(answer.checked_at)} relative />.
          </p>
        </>
      ) : (
        <p className={ui.dim}>
          The server looks the name up, and asks the certificate authority and
          the DNS provider. Nothing is changed.
        </p>
      )}
    </Section>
  );
}

function Result({ result }: { result: JsonObject }) {
  const level = text(result.result);
  const seen = Array.isArray(result.evidence) ? result.evidence.map(text) : [];
  const remedy = text(result.remedy);
  return (
    <li>
      <Tag tone={TONES[level] ?? 'quiet'}>{RESULTS[level] ?? level}</Tag>{' '}
      <strong>{TITLES[text(result.check)] ?? text(result.check)}</strong>
      <p>
        <Prose text={`${text(result.text)}.`} />
      </p>
      {seen.map((one) => (
        <p key={one} className={ui.dim}>
          <Prose text={one} />
        </p>
      ))}
      {remedy ? (
        <p>
          What to do: <Prose text={`${remedy}.`} />
        </p>
      ) : null}
    </li>
  );
}
