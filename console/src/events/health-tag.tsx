import type { EventDestinationHealth } from '../../generated/api';
import { Tag } from '@/ui/page';

const TONES = { ok: 'ok', retrying: 'warn', unhealthy: 'bad' } as const;
const WORDS = { ok: 'Healthy', retrying: 'Retrying', unhealthy: 'Unhealthy' };

export function HealthTag({ health }: { health: EventDestinationHealth }) {
  const never = health.state === 'ok' && !health.last_success_at;
  return never ? (
    <Tag>Nothing sent yet</Tag>
  ) : (
    <Tag tone={TONES[health.state]}>{WORDS[health.state]}</Tag>
  );
}
