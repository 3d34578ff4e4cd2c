import { text } from '@/api/json';
import type { Rank } from '@/resources/rank';
import type { EventDestinationHealth } from '../../generated/api';
import { isWhole } from './destination-rights';
import { healthQuery } from './queries';

export type HealthState = EventDestinationHealth['state'] | 'unused';

/** The state of a destination; `unused` if nothing was sent to it yet. */
export const healthState = ({
  state,
  last_success_at: sent,
}: EventDestinationHealth): HealthState =>
  state === 'ok' && !sent ? 'unused' : state;

const STATES: HealthState[] = ['unhealthy', 'retrying', 'unused', 'ok'];
/** The cells of a list ask as often. */
const FRESH_MS = 5000;

/** The order that begins with what needs attention. Of others' destinations nothing is known. */
export const HEALTH: Rank = {
  ask: async (object, client) => {
    if (!isWhole(object)) return undefined;
    const query = healthQuery(text(object.id));
    const health = await client.fetchQuery({ ...query, staleTime: FRESH_MS });
    return STATES.indexOf(healthState(health));
  },
};
