import { MultiSelect, Select, TextInput } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { useModel } from '@/api/document';
import type { Json } from '@/api/json';
import { collectionOf, nameOf } from './names';
import { listQuery } from './queries';

interface Common {
  label: string;
  description: React.ReactNode;
  error: string | undefined;
  withAsterisk: boolean;
  'data-autofocus'?: true | undefined;
  collection: string;
  onChange: (value: Json | undefined) => void;
}

type Props = Common &
  ({ many?: false; value: string } | { many: true; values: string[] });

/** Picks other objects by name. The newest hundred are offered; the id of an older one can be pasted. */
export function ReferenceField({ collection, onChange, ...props }: Props) {
  const resource = useModel().resources.get(collection);
  const [search, setSearch] = useState('');
  const query = listQuery(
    resource ?? ({ name: collection, listKey: collection } as never),
    {},
    100,
  );
  // An object that was made a moment ago is offered too.
  const list = useQuery({
    ...query,
    enabled: resource !== undefined,
    refetchOnMount: 'always',
  });
  const objects = list.data?.objects ?? [];
  const chosen = props.many ? props.values : [props.value].filter(Boolean);
  const offered = objects.map((object) => {
    const name = nameOf(object);
    return {
      value: String(object.id),
      label: name === object.id ? name : `${name} (${String(object.id)})`,
    };
  });
  const pasted = collectionOf(search) === collection ? [search] : [];
  const others = [...new Set([...chosen, ...pasted])].filter(
    (id) => !offered.some(({ value }) => value === id),
  );
  const data = [...offered, ...others.map((id) => ({ value: id, label: id }))];
  const shared = {
    label: props.label,
    description: props.description,
    error: props.error,
    withAsterisk: props.withAsterisk,
    'data-autofocus': props['data-autofocus'],
    openOnFocus: false,
    searchable: true,
    clearable: true,
    searchValue: search,
    onSearchChange: setSearch,
    nothingFoundMessage: 'None',
  };
  if (!resource)
    return (
      <TextInput
        label={props.label}
        value={chosen.join(',')}
        onChange={(event) => onChange(event.currentTarget.value)}
      />
    );
  return props.many ? (
    <MultiSelect
      {...shared}
      data={data}
      value={props.values}
      onChange={onChange}
    />
  ) : (
    <Select
      {...shared}
      data={data}
      value={props.value || null}
      onChange={(next) => onChange(next ?? undefined)}
    />
  );
}
