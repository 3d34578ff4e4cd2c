import { type JsonObject, text } from '@/api/json';
import { Tag, type Tone } from '@/ui/page';
import { Time } from '@/ui/time';

const DAY = 86_400_000;

function tone(end: string): Tone {
  const left = new Date(end).getTime() - Date.now();
  if (left < 0) return 'bad';
  return left < 21 * DAY ? 'warn' : 'ok';
}

export default function ExpiryCell({ object }: { object: JsonObject }) {
  const end = text(object.not_after);
  return (
    <Tag tone={tone(end)}>
      <Time value={end} relative />
    </Tag>
  );
}
