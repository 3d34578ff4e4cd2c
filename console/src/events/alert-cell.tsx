import { type JsonObject, text } from '@/api/json';
import { Tag } from '@/ui/page';

const TONES = { info: 'accent', warning: 'warn', critical: 'bad' } as const;

/** Whether an alert fires, and how serious it is. */
export default function AlertCell({ object }: { object: JsonObject }) {
  if (object.state !== 'firing') return <Tag tone="ok">Resolved</Tag>;
  const severity = text(object.severity) as keyof typeof TONES;
  return <Tag tone={TONES[severity] ?? 'warn'}>{`Firing: ${severity}`}</Tag>;
}
