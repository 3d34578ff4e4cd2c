import { Modal, TextInput } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { useNavigate } from '@tanstack/react-router';
import { type KeyboardEvent, useState } from 'react';
import { useModel } from '@/api/document';
import { call } from '@/api/http';
import { isObject, text } from '@/api/json';
import type { Model } from '@/api/model';
import { article, nounOf, titleOf } from '@/api/words';
import { nameOf } from '@/resources/names';
import { TOP } from './groups';
import css from './shell.module.css';

interface Entry {
  label: string;
  kind: string;
  to: string;
}

function pages(model: Model): Entry[] {
  const resources = [...model.resources.values()];
  return [
    ...TOP.filter(({ to }) => to !== '/endpoints').map(({ label, to }) => ({
      label,
      to,
      kind: 'Page',
    })),
    { label: 'Connect an agent', to: '/connect', kind: 'Page' },
    ...resources.map(({ name, slug }) => ({
      label: titleOf(name),
      to: `/${slug}`,
      kind: 'Page',
    })),
    ...resources
      .filter(({ create }) => create)
      .map(({ name, slug }) => ({
        label: `Create ${article(nounOf(name))}`,
        to: `/${slug}/new`,
        kind: 'Action',
      })),
  ];
}

/** The newest objects of every collection, looked through by name and id. Read once while the palette is open. */
async function objects(model: Model): Promise<Entry[]> {
  const lists = [...model.resources.values()].map(async (resource) => {
    const page = await call('GET', `/${resource.name}?limit=100`).catch(
      () => null,
    );
    const items = isObject(page ?? undefined)
      ? (page as Record<string, unknown>)[resource.listKey]
      : undefined;
    return (Array.isArray(items) ? items : []).map((object) => ({
      label: nameOf(object),
      kind: nounOf(resource.name),
      to: `/${resource.slug}/${text(object.id)}`,
    }));
  });
  return (await Promise.all(lists)).flat();
}

/** Both forms of tokens. The id in the middle is that of their object. */
const TOKEN =
  /^(?:culvert_(key|agent|invite)_)?([0-9A-Za-z]{27})_[0-9A-Za-z]{21,27}$/;

/** The pages of what a pasted token belongs to. The token itself goes nowhere. */
function ofToken(model: Model, pasted: string): Entry[] {
  const found = TOKEN.exec(pasted.trim());
  if (!found) return [];
  const [, kind, body] = found;
  const owners = [
    { name: 'api_keys', id: `ak_${body}`, kinds: ['key', undefined] },
    { name: 'credentials', id: `cr_${body}`, kinds: ['agent', undefined] },
    { name: 'users', id: `usr_${body}`, kinds: ['invite'] },
  ];
  return owners
    .filter(({ kinds }) => kinds.includes(kind))
    .flatMap(({ name, id }) => {
      const slug = model.resources.get(name)?.slug;
      const noun = nounOf(name);
      const label = `The ${noun} of this token`;
      return slug ? [{ label, kind: noun, to: `/${slug}/${id}` }] : [];
    });
}

export default function Palette({ onClose }: { onClose: () => void }) {
  const model = useModel();
  const navigate = useNavigate();
  const [query, setQuery] = useState('');
  const [at, setAt] = useState(0);
  const wanted = query.trim().toLowerCase();
  const found = useQuery({
    queryKey: ['palette'],
    queryFn: () => objects(model),
    staleTime: 30_000,
  });
  const named = [...pages(model), ...(wanted ? (found.data ?? []) : [])].filter(
    ({ label, to }) =>
      label.toLowerCase().includes(wanted) || to.toLowerCase().includes(wanted),
  );
  const entries = [...ofToken(model, query), ...named].slice(0, 50);
  const go = (entry: Entry | undefined) => {
    if (!entry) return;
    onClose();
    void navigate({ to: entry.to });
  };
  const onKey = (event: KeyboardEvent) => {
    if (event.key === 'Enter') go(entries[at]);
    else if (event.key === 'ArrowDown')
      setAt(Math.min(at + 1, entries.length - 1));
    else if (event.key === 'ArrowUp') setAt(Math.max(at - 1, 0));
    else return;
    event.preventDefault();
  };
  return (
    <Modal
      opened
      onClose={onClose}
      title="Go to"
      size="lg"
      yOffset="10vh"
      centered={false}
    >
      <div className={css.palette}>
        <TextInput
          data-autofocus
          placeholder="A page, a name, an id or a token"
          aria-label="Page, name, id or token"
          value={query}
          onKeyDown={onKey}
          role="combobox"
          aria-expanded="true"
          aria-controls="palette-list"
          aria-activedescendant={entries[at] ? `palette-${at}` : undefined}
          onChange={(event) => {
            setQuery(event.currentTarget.value);
            setAt(0);
          }}
        />
        <ul id="palette-list" role="listbox" aria-label="Results" tabIndex={-1}>
          {entries.map((entry, index) => (
            <li
              key={`${entry.to} ${entry.label}`}
              id={`palette-${index}`}
              role="option"
              aria-selected={index === at}
              onClick={() => go(entry)}
              onKeyDown={onKey}
              onMouseMove={() => setAt(index)}
              ref={(element) => {
                if (index === at) element?.scrollIntoView({ block: 'nearest' });
              }}
            >
              <b>{entry.label}</b>
              <span>{entry.kind}</span>
            </li>
          ))}
        </ul>
        {entries.length === 0 ? <p>Nothing has this name or id.</p> : null}
      </div>
    </Modal>
  );
}
