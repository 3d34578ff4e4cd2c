import { type Json, type JsonObject, isObject, text } from '@/api/json';
import { SubjectCharts } from '@/charts/subject-charts';
import { humanize } from '@/api/words';
import { Breakable } from '@/ui/breakable';
import { Glance } from '@/ui/glance';
import ui from '@/ui/ui.module.css';
import { Section } from '@/ui/page';
import { Attempts } from './attempts';
import { DeadLetters } from './dead-letters';
import { isWhole } from './destination-rights';
import { Health } from './health';
import { Replay } from './replay';
import { SubscriptionsTo } from './subscriptions-to';

/** Settings that say where a target is, in this order. */
const PLACES = [
  'url',
  'path',
  'endpoint',
  'address',
  'brokers',
  'topic',
  'queue_url',
  'bucket',
  'host',
];

/** The kind of a target, and where it is. */
function placeOf(target: Json | undefined): string {
  const chosen = Object.entries(isObject(target) ? target : {}).find(
    ([, settings]) => isObject(settings),
  );
  if (!chosen) return '';
  const [kind, settings] = chosen;
  const place = PLACES.map((name) =>
    text(isObject(settings) ? settings[name] : ''),
  ).find(Boolean);
  return place ? `${humanize(kind)}: ${place}` : humanize(kind);
}

export default function DestinationExtra({ object }: { object: JsonObject }) {
  const id = String(object.id);
  if (!isWhole(object))
    return (
      <Section title="Health">
        <p className={ui.dim}>
          Its target, health and attempts are visible to its owner and to
          admins.
        </p>
      </Section>
    );
  return (
    <>
      <Glance
        items={[
          ['Sends to', <Breakable key="to" text={placeOf(object.target)} />],
          ['Format', text(object.format).toUpperCase()],
        ]}
      />
      <div className={ui.columns}>
        <Health id={id} />
        <div>
          <SubscriptionsTo id={id} />
          <Replay id={id} />
        </div>
      </div>
      <SubjectCharts subject="destination" id={id} />
      <Attempts id={id} />
      <DeadLetters id={id} />
    </>
  );
}
