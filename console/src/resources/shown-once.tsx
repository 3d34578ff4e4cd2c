import { type JsonObject, isObject } from '@/api/json';
import { humanize } from '@/api/words';
import { Button } from '@/ui/button';
import { CopyBlock } from '@/ui/copy';
import ui from '@/ui/ui.module.css';

interface Secret {
  label: string;
  value: string;
}

/** Secrets of an answer that are never shown again: tokens, and the signing secrets of a webhook. */
export function secretsIn(object: JsonObject): Secret[] {
  const secrets: Secret[] = [];
  if (typeof object.token === 'string' && object.token)
    secrets.push({ label: 'Token', value: object.token });
  if (typeof object.invitation_url === 'string' && object.invitation_url)
    secrets.push({ label: 'Invitation link', value: object.invitation_url });
  const webhook = isObject(object.target) ? object.target.webhook : undefined;
  if (isObject(webhook) && Array.isArray(webhook.secrets)) {
    for (const value of webhook.secrets)
      if (typeof value === 'string' && value.startsWith('whsec_'))
        secrets.push({ label: 'Signing secret', value });
  }
  for (const [key, value] of Object.entries(object)) {
    if (
      key.startsWith('private_key') &&
      key !== 'private_key_type' &&
      typeof value === 'string' &&
      value
    )
      secrets.push({ label: humanize(key), value });
  }
  return secrets;
}

/** The secrets of an answer, each with a button that copies it. */
export function Secrets({ object }: { object: JsonObject }) {
  return secretsIn(object).map(({ label, value }) => (
    <div key={value} className={ui.once} role="status">
      <p>
        <strong>{label}.</strong> Copy it now. It is not shown again.
      </p>
      <CopyBlock value={value} label={label.toLowerCase()} />
    </div>
  ));
}

export function ShownOnce({
  object,
  onDone,
}: {
  object: JsonObject;
  onDone: () => void;
}) {
  return (
    <div className={ui.stack}>
      <Secrets object={object} />
      <div className={ui.formFoot}>
        <Button onClick={onDone} data-autofocus>
          I have copied it
        </Button>
      </div>
    </div>
  );
}
