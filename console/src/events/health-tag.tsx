import type { EventDestinationHealth } from '../../generated/api';
import { Tag } from '@/ui/page';
import { healthState } from './health-order';

const TAGS = {
  ok: <Tag tone="ok">Healthy</Tag>,
  retrying: <Tag tone="warn">Retrying</Tag>,
  unhealthy: <Tag tone="bad">Unhealthy</Tag>,
  unused: <Tag>Nothing sent yet</Tag>,
};

export function HealthTag({ health }: { health: EventDestinationHealth }) {
  return TAGS[healthState(health)];
}
