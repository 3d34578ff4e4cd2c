import { type JsonObject, isObject, text } from '@/api/json';
import { eventTitle } from '@/api/words';
import { Section } from '@/ui/page';
import ui from '@/ui/ui.module.css';

/** The kinds of events that are wanted, each with its condition and its fields. */
export default function SubscriptionExtra({ object }: { object: JsonObject }) {
  const sources = Array.isArray(object.sources)
    ? object.sources.filter(isObject)
    : [];
  return (
    <Section title="Events">
      {sources.length === 0 ? (
        <p className={ui.dim}>
          This subscription wants no events yet. Edit it to add kinds.
        </p>
      ) : null}
      <ul className={ui.items}>
        {sources.map((source) => {
          const fields = Array.isArray(source.fields) ? source.fields : [];
          return (
            <li key={text(source.type)}>
              <strong>{eventTitle(text(source.type))}</strong>{' '}
              <code>{text(source.type)}</code>
              {source.filter ? (
                <span className={ui.sub}>
                  where <code>{text(source.filter)}</code>
                </span>
              ) : null}
              {fields.length > 0 ? (
                <span className={ui.sub}>{fields.map(text).join(', ')}</span>
              ) : null}
            </li>
          );
        })}
      </ul>
    </Section>
  );
}
