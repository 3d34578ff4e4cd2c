import { MultiSelect } from '@mantine/core';
import { type Json, text } from '@/api/json';
import catalogue from '@/live/catalogue.json';

const FIELDS: Record<string, { name: string }[]> = catalogue.fields;
const ALL = [
  ...new Set(
    Object.values(FIELDS)
      .flat()
      .map(({ name }) => name),
  ),
].toSorted();

interface Props {
  label: string;
  description: React.ReactNode;
  error: string | undefined;
  value: Json | undefined;
  onChange: (fields: string[]) => void;
}

/** Picks fields of traffic events. */
export function FieldPicker({
  label,
  description,
  error,
  value,
  onChange,
}: Props) {
  const chosen = Array.isArray(value) ? value.map(text) : [];
  return (
    <MultiSelect
      label={label}
      description={description}
      error={error}
      placeholder={chosen.length === 0 ? 'All fields but those of culvert' : ''}
      searchable
      clearable
      hidePickedOptions
      data={[...new Set([...ALL, ...chosen])]}
      value={chosen}
      onChange={onChange}
    />
  );
}
