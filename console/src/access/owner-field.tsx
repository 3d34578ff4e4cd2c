import { Select } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { useModel } from '@/api/document';
import type { Resource } from '@/api/model';
import { collectionOf, nameOf } from '@/resources/names';
import { listQuery } from '@/resources/queries';

const OFFERED = 100;

function useOffered(label: string, resource: Resource) {
  const { data } = useQuery(listQuery(resource, {}, OFFERED));
  const items = (data?.objects ?? []).map((object) => ({
    value: String(object.id),
    label: nameOf(object),
  }));
  return { group: label, items };
}

interface Props {
  bots: Resource;
  people: Resource;
  description: React.ReactNode;
  value: string;
  error: string | undefined;
  onChange: (next: string | undefined) => void;
}

/** Picks the bot or the person that a key is for, by name. The id of an older one can be pasted. */
function Owners({ bots, people, value, onChange, ...props }: Props) {
  const [search, setSearch] = useState('');
  const groups = [useOffered('Bots', bots), useOffered('People', people)];
  const known = new Set(
    groups.flatMap(({ items }) => items.map((one) => one.value)),
  );
  const isOwner = ['bot_users', 'users'].includes(collectionOf(search) ?? '');
  const others = [value, isOwner ? search : ''].filter(
    (id) => id && !known.has(id),
  );
  return (
    <Select
      {...props}
      label="Owner"
      data={[...groups, ...new Set(others)]}
      searchable
      clearable
      openOnFocus={false}
      placeholder="You"
      nothingFoundMessage="None"
      searchValue={search}
      onSearchChange={setSearch}
      value={value || null}
      onChange={(next) => onChange(next ?? undefined)}
    />
  );
}

/** Nothing for a caller that cannot see people and bots: only admins make keys for others. */
export function OwnerField(props: Omit<Props, 'bots' | 'people'>) {
  const { resources } = useModel();
  const bots = resources.get('bot_users');
  const people = resources.get('users');
  return bots?.create && people?.create ? (
    <Owners {...props} bots={bots} people={people} />
  ) : null;
}
