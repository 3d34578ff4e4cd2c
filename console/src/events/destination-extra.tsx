import { type JsonObject, text } from '@/api/json';
import { SubjectCharts } from '@/charts/subject-charts';
import { Value } from '@/resources/value';
import { Glance } from '@/ui/glance';
import ui from '@/ui/ui.module.css';
import { Section } from '@/ui/page';
import { Attempts } from './attempts';
import { DeadLetters } from './dead-letters';
import { isWhole } from './destination-rights';
import { Health } from './health';
import HealthCell from './health-cell';
import { Replay } from './replay';
import { SubscriptionsTo } from './subscriptions-to';

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
          ['Sends to', <Value key="target" value={object.target} />],
          ['As', <code key="format">{text(object.format)}</code>],
          ['Health', <HealthCell key="health" object={object} />],
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
