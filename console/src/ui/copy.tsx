import { useState } from 'react';
import { IconButton } from './button';
import { toClipboard } from './clipboard';
import { Icon } from './icons';
import { announce } from './toast';
import css from './ui.module.css';

export function CopyButton({
  value,
  label = 'Copy',
}: {
  value: string;
  label?: string;
}) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    const done = await toClipboard(value);
    announce(
      done
        ? 'Copied.'
        : 'The browser does not allow copying. Select the text and copy it.',
    );
    setCopied(done);
    setTimeout(() => setCopied(false), 1500);
  };
  return (
    <IconButton
      variant="subtle"
      aria-label={label}
      title={label}
      onClick={() => void copy()}
    >
      <Icon name={copied ? 'check' : 'copy'} size={16} />
    </IconButton>
  );
}

/** A command, or any text to be taken elsewhere. */
export function CopyBlock({ value, label }: { value: string; label: string }) {
  return (
    <div className={css.copyBlock}>
      <pre tabIndex={0} role="group" aria-label={label}>
        {value
          .split(/(--[\w-]+)/)
          .map((part, index) =>
            index % 2 ? <span key={index}>{part}</span> : part,
          )}
      </pre>
      <CopyButton value={value} label={`Copy ${label}`} />
    </div>
  );
}
