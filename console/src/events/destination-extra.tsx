import type { JsonObject } from '@/api/json';
import { SubjectCharts } from '@/charts/subject-charts';
import ui from '@/ui/ui.module.css';
import { Attempts } from './attempts';
import { DeadLetters } from './dead-letters';
import { Health } from './health';
import { Replay } from './replay';
import { SubscriptionsTo } from './subscriptions-to';

export default function DestinationExtra({ object }: { object: JsonObject }) {
  const id = String(object.id);
  return (
    <>
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
