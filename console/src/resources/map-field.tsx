import { TextInput } from '@mantine/core';
import { type JsonObject, text } from '@/api/json';
import { Button, IconButton } from '@/ui/button';
import { Icon } from '@/ui/icons';
import ui from '@/ui/ui.module.css';

interface Props {
  label: string;
  description: React.ReactNode;
  error: string | undefined;
  value: JsonObject;
  onChange: (value: JsonObject) => void;
}

/** Names and values of the person's own, such as header fields. */
export function MapField({
  label,
  description,
  error,
  value,
  onChange,
}: Props) {
  const entries = Object.entries(value);
  const put = (index: number, name: string, content: string) =>
    onChange(
      Object.fromEntries(
        entries.map((entry, other) =>
          other === index ? [name, content] : entry,
        ),
      ),
    );
  return (
    <fieldset className={ui.fieldset}>
      <legend>{label}</legend>
      <p className={ui.hint}>{description}</p>
      {error ? (
        <p role="alert" className="field-error">
          {error}
        </p>
      ) : null}
      <div className={ui.stack}>
        {entries.map(([name, content], index) => (
          <div key={index} className={ui.row}>
            <TextInput
              aria-label={`${label}, name ${index + 1}`}
              placeholder="Name"
              value={name}
              onChange={(event) =>
                put(index, event.currentTarget.value, text(content))
              }
            />
            <TextInput
              aria-label={`${label}, value ${index + 1}`}
              placeholder="Value"
              value={text(content)}
              onChange={(event) => put(index, name, event.currentTarget.value)}
            />
            <IconButton
              variant="subtle"
              color="gray"
              aria-label={`Remove ${name || 'the line'}`}
              onClick={() =>
                onChange(
                  Object.fromEntries(
                    entries.filter((_, other) => other !== index),
                  ),
                )
              }
            >
              <Icon name="close" size={14} />
            </IconButton>
          </div>
        ))}
        <div>
          <Button
            size="xs"
            variant="default"
            disabled={'' in value}
            onClick={() => onChange({ ...value, '': '' })}
          >
            Add a line
          </Button>
        </div>
      </div>
    </fieldset>
  );
}
