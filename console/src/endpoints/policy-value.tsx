import { useState } from 'react';
import { Button } from '@/ui/button';
import { CopyButton } from '@/ui/copy';
import { escaped } from '@/ui/escaped';
import ui from '@/ui/ui.module.css';
import { masked, secretsIn } from './secrets';

/** A policy as text, whose secrets are hidden until they are asked for. */
export default function PolicyValue({ value }: { value: string }) {
  const [isOpen, setIsOpen] = useState(false);
  const hasSecrets = secretsIn(value).length > 0;
  const shown = isOpen ? value : masked(value);
  return (
    <div className={ui.stack}>
      <div className={ui.row}>
        <pre
          className={ui.long}
          tabIndex={0}
          role="group"
          aria-label="Traffic policy"
        >
          {escaped(shown, true)}
        </pre>
        <CopyButton value={shown} />
      </div>
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
    </div>
  );
}
