import { Modal, TextInput } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import { useNavigate } from '@/routing/view';
import { type KeyboardEvent, useState } from 'react';
import { useModel } from '@/api/document';
import { call } from '@/api/http';
import { isObject, text } from '@/api/json';
import type { Model } from '@/api/model';
import { isLikeToken, TOKEN } from '@/api/token';
import { article, nounOf, titleOf } from '@/api/words';
import { items } from '@/resources/names';
import { useScheme } from '@/theme/scheme';
import { Styled } from '@/theme/styled';
import { useSignOut } from './account';
import { TOP } from './groups';
import { NAMES } from './other-names';
import css from './shell.module.css';

interface Entry {
  label: string;
  kind: string;
  /** Further words that find it. */
  words?: string;
  /** What it was found by, if that is not its label. */
  detail?: string;
  to?: string;
  run?: () => void;
}

/** Other words for the first ones, as people type them. */
const SYNONYMS: Record<string, string> = {
  make: 'create',
  new: 'create',
  add: 'create',
  reserve: 'create',
  logout: 'sign out',
  log: 'sign',
  leave: 'sign out',
  exit: 'sign out',
  quit: 'sign out',
  mode: 'colours',
  theme: 'colours',
  night: 'dark',
  day: 'light',
  colors: 'colours',
  cert: 'certificate',
};
/** Words for the creation of some objects alone. */
const VERBS: Record<string, string> = { users: 'invite' };
const FILLERS = new Set(['a', 'an', 'the', 'to', 'my', 'go', 'show', 'list']);

/** The other names of a page, as words. */
const namesOf = (to: string) =>
  Object.entries(NAMES)
    .flatMap(([name, page]) => (page === to ? name.replaceAll('_', ' ') : []))
    .join(' ');

function pages(model: Model): Entry[] {
  const resources = [...model.resources.values()];
  return [
    ...TOP.filter(({ to }) => to !== '/endpoints').map(({ label, to }) => ({
      label,
      to,
      kind: 'Page',
      words: namesOf(to),
    })),
    {
      label: 'Connect an agent',
      to: '/connect',
      kind: 'Page',
      words: 'create tunnel',
    },
    ...resources.map(({ name, slug }) => ({
      label: titleOf(name),
      to: `/${slug}`,
      kind: 'Page',
      words: namesOf(`/${slug}`),
    })),
    ...resources
      .filter(({ create }) => create)
      .map(({ name, slug }) => ({
        label: `Create ${article(nounOf(name))}`,
        to: `/${slug}/new`,
        kind: 'Action',
        words: `${namesOf(`/${slug}`)} ${VERBS[name] ?? ''}`,
      })),
  ];
}

/** Whether an entry has every word of a search, in any order and by other words. */
function matches({ label, words = '', to = '' }: Entry, wanted: string) {
  if (to.includes(wanted)) return true;
  const known = `${label} ${words}`.toLowerCase();
  if (known.includes(wanted)) return true;
  const asked = wanted.split(/\s+/).filter((word) => !FILLERS.has(word));
  return (
    asked.length > 0 &&
    asked.every(
      (word) =>
        known.includes(word) ||
        (SYNONYMS[word]?.split(' ').every((one) => known.includes(one)) ??
          false),
    )
  );
}

interface Objects {
  entries: Entry[];
  isComplete: boolean;
}

/** Objects that the server finds by name, address, ID or description. */
async function objects(
  model: Model,
  wanted: string,
  signal: AbortSignal,
): Promise<Objects> {
  const query = new URLSearchParams({ q: wanted, limit: '30' });
  const found = await call('GET', `/search?${query}`, undefined, signal);
  return {
    isComplete: isObject(found) && found.is_complete !== false,
    entries: items(found, 'results').flatMap((one) => {
      const resource = model.resources.get(text(one.collection));
      if (!resource) return [];
      const label =
        text(one.name) ||
        text(one.url) ||
        text(one.description) ||
        text(one.id);
      const by = text(one[text(one.matched)]);
      return [
        {
          label,
          kind: nounOf(resource.name),
          to: `/${resource.slug}/${text(one.id)}`,
          detail: by === label ? '' : by,
        },
      ];
    }),
  };
}

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

const TYPING_MS = 120;
/** So many pages and actions stand before the objects. */
const PAGES = 8;

export default function Palette({ onClose }: { onClose: () => void }) {
  const model = useModel();
  const navigate = useNavigate();
  const scheme = useScheme();
  const signOut = useSignOut();
  const [query, setQuery] = useState('');
  const [at, setAt] = useState(0);
  const wanted = query.trim().toLowerCase();
  const [asked] = useDebouncedValue(query.trim(), TYPING_MS);
  const isAsked = asked.length > 1 && !isLikeToken(asked);
  const found = useQuery({
    queryKey: ['palette', asked],
    queryFn: ({ signal }) => objects(model, asked, signal),
    enabled: isAsked,
    placeholderData: keepPreviousData,
    staleTime: 10_000,
  });
  const actions: Entry[] = [
    { label: 'Sign out', kind: 'Action', run: signOut },
    { label: scheme.label, kind: 'Action', run: scheme.toggle },
  ];
  const named = [...pages(model), ...actions]
    .filter((entry) => matches(entry, wanted))
    .toSorted(
      (one, other) =>
        Number(other.label.toLowerCase().startsWith(wanted)) -
        Number(one.label.toLowerCase().startsWith(wanted)),
    );
  const there = isAsked ? (found.data?.entries ?? []) : [];
  const entries = [
    ...ofToken(model, query),
    ...(there.length > 0 ? named.slice(0, PAGES) : named),
    ...there,
  ];
  const isSearching = isAsked && found.isFetching;
  const go = (entry: Entry | undefined) => {
    if (!entry) return;
    onClose();
    if (entry.run) entry.run();
    else if (entry.to) void navigate({ to: entry.to });
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
    <Styled>
      {' '}
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
            placeholder="A page, an action, a name, an address, an ID or a token"
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
          <ul
            id="palette-list"
            role="listbox"
            aria-label="Results"
            tabIndex={-1}
          >
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
                  if (index === at)
                    element?.scrollIntoView({ block: 'nearest' });
                }}
              >
                <b>{entry.label}</b>
                {entry.detail ? <small>{entry.detail}</small> : null}
                <span>{entry.kind}</span>
              </li>
            ))}
          </ul>
          <p role="status">
            {isSearching
              ? 'Searching…'
              : found.error && isAsked
                ? `Objects were not searched: ${found.error.message}`
                : entries.length === 0
                  ? 'Nothing has this name, address, id or description.'
                  : isAsked && found.data?.isComplete === false
                    ? 'More objects match. Type more of the name.'
                    : ''}
          </p>
        </div>
      </Modal>
    </Styled>
  );
}
