import { Suspense, useState } from 'react';
import { lazyPart } from '@/api/load';
import { Button } from '@/ui/button';
import { Loading } from '@/ui/states';
import ui from '@/ui/ui.module.css';
import { masked, secretsIn } from './secrets';

const CodeDiff = lazyPart(() => import('@/ui/code-editor-diff'));

/** The same number of marks for each secret would hide that one changed, so changed ones say so. */
function hidden(before: string, after: string): [string, string] {
  const secrets = (policy: string) =>
    secretsIn(policy).map(([from, to]) => policy.slice(from, to));
  const known = secrets(before);
  const isNew = secrets(after).some((secret) => !known.includes(secret));
  return [
    masked(before),
    masked(after) + (isNew ? '\n# A hidden secret is new or has changed.' : ''),
  ];
}

/** What a save would change in a policy. */
export function PolicyReview({
  before,
  after,
}: {
  before: string;
  after: string;
}) {
  const [isOpen, setIsOpen] = useState(false);
  const hasSecrets =
    secretsIn(before).length > 0 || secretsIn(after).length > 0;
  const [old, next] = isOpen ? [before, after] : hidden(before, after);
  return (
    <section className={ui.stack} aria-label="Changes of the policy">
      <p className={ui.hint}>
        The save changes the traffic policy. It applies to the next request.
      </p>
      <Suspense fallback={<Loading />}>
        <CodeDiff label="Changes of the policy" before={old} after={next} />
      </Suspense>
      {hasSecrets ? (
        <div className={ui.actions}>
          <Button
            size="xs"
            variant="default"
            aria-pressed={isOpen}
            onClick={() => setIsOpen((now) => !now)}
          >
            {isOpen ? 'Hide secrets' : 'Show secrets'}
          </Button>
        </div>
      ) : null}
    </section>
  );
}
