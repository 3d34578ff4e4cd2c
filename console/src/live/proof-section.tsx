import { TextInput } from '@mantine/core';
import { useEffect, useRef, useState } from 'react';
import { counted } from '@/api/words';
import { Button } from '@/ui/button';
import { viewer } from './viewer';
import { CopyButton } from '@/ui/copy';
import { Section } from '@/ui/page';
import { saveFile } from '@/ui/save-file';
import { Failure } from '@/ui/states';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import { type Head, headOf, type Proof, prove } from './proof';

interface Seen extends Head {
  at: string;
}

const keyOf = () => `culvert audit head ${viewer.owner}`;

/** The head that this browser verified last. */
function seenHead(): Seen | undefined {
  try {
    const value = JSON.parse(
      localStorage.getItem(keyOf()) ?? 'null',
    ) as Seen | null;
    return value && headOf(textOf(value)) ? value : undefined;
  } catch {
    return undefined;
  }
}

const textOf = ({ position, hash }: Head) => `${position}:${hash}`;

/** What the verification found: a fault loudly, with its position. */
function Result({
  proof,
  recorded,
  seen,
}: {
  proof: Proof;
  recorded: Head | undefined;
  seen: Seen | undefined;
}) {
  const { checked, first, head, fault, hidden, unchained } = proof;
  if (fault) {
    return (
      <div className={ui.failure} role="alert">
        <h2>The audit log is broken</h2>
        <p>{fault.what}</p>
        <p>
          Keep a copy of the database, and run <code>culvert audit verify</code>{' '}
          beside the server.{' '}
          {seen && !recorded ? (
            <>
              This browser verified position {seen.position} at{' '}
              <Time value={seen.at} />; a restored backup ends earlier, too.
            </>
          ) : null}
        </p>
      </div>
    );
  }
  if (!proof.isDone)
    return <p role="status">{counted(checked, 'event')} checked…</p>;
  if (checked === 0)
    return <p role="status">The audit log has no events that you may read.</p>;
  return (
    <div className={ui.once} role="status">
      <p>
        <strong>
          {hidden > 0
            ? 'What you may read is intact.'
            : 'The audit log is intact.'}
        </strong>{' '}
        {counted(checked, 'event')}, positions {first} to{' '}
        {head?.position ?? first}:{' '}
        {hidden > 0
          ? 'each hash is that of its content.'
          : 'no gaps, each event names the hash of the one before it, and each hash is that of its content.'}
      </p>
      {hidden > 0 ? (
        <p>
          {counted(hidden, 'event')} about keys, credentials and agent sessions{' '}
          {hidden === 1 ? 'is' : 'are'} visible to admins only. Only an admin
          can verify that none is missing.
        </p>
      ) : null}
      {unchained > 0 ? (
        <p>
          {counted(unchained, 'event')} {unchained === 1 ? 'has' : 'have'} no
          hash yet: an older server wrote {unchained === 1 ? 'it' : 'them'}. The
          next change adds it.
        </p>
      ) : null}
      {recorded && proof.recorded === 'found' ? (
        <p>The recorded head, position {recorded.position}, is in it.</p>
      ) : null}
      {recorded && proof.recorded === 'pruned' ? (
        <p>
          The recorded position {recorded.position} was deleted for its age, so
          it proves nothing any more. Record the new head.
        </p>
      ) : null}
      {!recorded && seen ? (
        <p>
          {proof.recorded === 'found' ? (
            <>
              The head that this browser verified at <Time value={seen.at} />,
              position {seen.position}, is in it.
            </>
          ) : (
            'The head that this browser verified before was deleted for its age.'
          )}
        </p>
      ) : null}
      {head ? (
        <p className={ui.idline}>
          Head <code>{textOf(head)}</code>
          <CopyButton value={textOf(head)} label="Copy the head" />
        </p>
      ) : null}
    </div>
  );
}

/** Verifies the audit log in the browser, and exports it. It does not rely on a result of the server. */
export function ProofSection() {
  const [given, setGiven] = useState('');
  const [proof, setProof] = useState<Proof>();
  const [against, setAgainst] = useState<{
    recorded: Head | undefined;
    seen: Seen | undefined;
  }>({ recorded: undefined, seen: undefined });
  const [error, setError] = useState<Error>();
  const running = useRef<AbortController>(null);
  const [isRunning, setIsRunning] = useState(false);
  useEffect(() => () => running.current?.abort(), []);
  const recorded = headOf(given);
  const isWrong = given.trim() !== '' && !recorded;
  const run = async (exports: boolean) => {
    const stop = new AbortController();
    const lines: string[] = [];
    const seen = seenHead();
    running.current = stop;
    setAgainst({ recorded, seen });
    setError(undefined);
    setProof(undefined);
    setIsRunning(true);
    try {
      const done = await prove({
        signal: stop.signal,
        recorded: recorded ?? seen,
        onProgress: setProof,
        ...(exports
          ? {
              onLines: (more: string[]) => {
                lines.push(...more);
              },
            }
          : {}),
      });
      if (exports) saveFile('audit.jsonl', 'application/x-ndjson', lines);
      if (!done.fault && done.head && done.hidden === 0)
        localStorage.setItem(
          keyOf(),
          JSON.stringify({
            ...done.head,
            at: new Date().toISOString(),
          } satisfies Seen),
        );
    } catch (cause) {
      if (!stop.signal.aborted)
        setError(cause instanceof Error ? cause : new Error(String(cause)));
      setProof(undefined);
    } finally {
      setIsRunning(false);
    }
  };
  const actions = isRunning ? (
    <Button
      size="xs"
      variant="default"
      onClick={() => running.current?.abort()}
    >
      Stop
    </Button>
  ) : (
    <>
      <Button size="xs" disabled={isWrong} onClick={() => void run(false)}>
        Verify
      </Button>
      <Button
        size="xs"
        variant="default"
        disabled={isWrong}
        onClick={() => void run(true)}
      >
        Verify and export
      </Button>
    </>
  );
  return (
    <Section title="Proof of completeness" actions={actions}>
      <p className={ui.hint}>
        Your browser reads the whole log and computes every hash again. The
        hashes have no key: only a head that was recorded elsewhere shows that
        the log was truncated or regenerated.
      </p>
      <details className={ui.commands}>
        <summary>Compare with a recorded head</summary>
        <TextInput
          label="Recorded head"
          description="Position and hash, as an earlier verification or the server's log shows them. Empty: the head that this browser verified last."
          placeholder="1204:6354e0ec…"
          value={given}
          onChange={(event) => setGiven(event.currentTarget.value)}
          error={
            isWrong
              ? 'A head is a position, a colon, and 64 hexadecimal digits.'
              : undefined
          }
        />
      </details>
      {error ? <Failure error={error} /> : null}
      {proof ? (
        <Result proof={proof} recorded={against.recorded} seen={against.seen} />
      ) : null}
    </Section>
  );
}
