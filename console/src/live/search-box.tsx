import { TextInput } from '@mantine/core';
import { useDebouncedValue } from '@mantine/hooks';
import { keepPreviousData, useQuery } from '@tanstack/react-query';
import {
  type FormEvent,
  type KeyboardEvent,
  Suspense,
  useEffect,
  useId,
  useRef,
  useState,
} from 'react';
import { lazyPart } from '@/api/load';
import { isLikeToken } from '@/api/token';
import { eventTitle } from '@/api/words';
import { Button } from '@/ui/button';
import { Icon } from '@/ui/icons';
import { clock, isToday } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import { type EventSearch, instant } from './kept';
import {
  celOf,
  type Completion,
  cut,
  type Terms,
  termsQuery,
  without,
} from './terms';
import css from './live.module.css';

const CodeEditor = lazyPart(() => import('@/ui/code-editor'));

const TYPING_MS = 120;

function moment(given: string): string {
  const at = instant(given);
  if (!at) return given;
  const day = isToday(at) ? '' : `${new Date(at).toLocaleDateString()} `;
  return day + clock(at).split('.')[0];
}

/** Parts of a search that are no words, as links into this page have them. */
const OTHERS: [keyof EventSearch, (value: string) => string][] = [
  ['filter', (value) => `CEL ${value}`],
  ['type', (value) => value.split(',').map(eventTitle).join(', ')],
  ['from', (value) => `from ${moment(value)}`],
  ['to', (value) => `to ${moment(value)}`],
  ['object', (value) => `object ${value}`],
  ['actor', (value) => `by ${value}`],
];

function Chip({
  label,
  isNegated = false,
  onRemove,
}: {
  label: string;
  isNegated?: boolean;
  onRemove: () => void;
}) {
  return (
    <li className={css.chip} data-negated={isNegated}>
      <span title={label}>{label}</span>
      <button
        type="button"
        aria-label={`Remove ${label}`}
        title={`Remove ${label}`}
        onClick={onRemove}
      >
        <Icon name="close" size={12} />
      </button>
    </li>
  );
}

/** What is wrong with the words, at the word. */
function WordError({ terms }: { terms: Terms }) {
  if (!terms.error) return null;
  const [, word] = cut(terms.q, terms.error);
  return (
    <p className={css.wordError} role="alert">
      {word ? <mark>{word}</mark> : null}{' '}
      {terms.error.message.replace(/[^.?!]$/, '$&.')}
    </p>
  );
}

interface WordsProps {
  value: string;
  placeholder: string;
  terms: Terms | undefined;
  onChange: (value: string) => void;
}

/** The words, with completion of the last one. */
function Words({ value, placeholder, terms, onChange }: WordsProps) {
  const input = useRef<HTMLInputElement>(null);
  const list = useId();
  const [isOpen, setOpen] = useState(false);
  const [at, setAt] = useState(-1);
  // Completions of words that have changed since would complete another word.
  const options =
    isOpen && terms?.q === value ? terms.completions.slice(0, 12) : [];
  const take = ({ text }: Completion) => {
    const rest = value.slice(
      0,
      value.length - (/\S*$/.exec(value)?.[0].length ?? 0),
    );
    onChange(rest + text + (text.endsWith(':') ? '' : ' '));
    setAt(-1);
    setOpen(text.endsWith(':'));
    input.current?.focus();
  };
  const onKey = (event: KeyboardEvent) => {
    const chosen = options[at];
    if (event.key === 'ArrowDown' && options.length > 0)
      setAt((at + 1) % options.length);
    else if (event.key === 'ArrowUp' && options.length > 0)
      setAt(at <= 0 ? options.length - 1 : at - 1);
    else if (event.key === 'Escape' && options.length > 0) setOpen(false);
    else if ((event.key === 'Enter' || event.key === 'Tab') && chosen)
      take(chosen);
    else {
      if (event.key === 'Enter') setOpen(false);
      return;
    }
    event.preventDefault();
  };
  return (
    <div className={css.words}>
      <TextInput
        ref={input}
        aria-label="Search"
        placeholder={placeholder}
        leftSection={<Icon name="search" size={16} />}
        autoComplete="off"
        autoCapitalize="off"
        spellCheck={false}
        role="combobox"
        aria-autocomplete="list"
        aria-expanded={options.length > 0}
        aria-controls={list}
        aria-activedescendant={options[at] ? `${list}-${at}` : undefined}
        value={value}
        onChange={(event) => {
          onChange(event.currentTarget.value);
          setOpen(true);
          setAt(-1);
        }}
        onKeyDown={onKey}
        onBlur={() => setOpen(false)}
      />
      <ul
        id={list}
        role="listbox"
        aria-label="Completions"
        className={css.completions}
        hidden={options.length === 0}
      >
        {options.map((option, index) => (
          <li
            key={option.text}
            id={`${list}-${index}`}
            role="option"
            aria-selected={index === at}
            // The field keeps the focus.
            onMouseDown={(event) => event.preventDefault()}
            onClick={() => take(option)}
            onMouseMove={() => setAt(index)}
          >
            <b>{option.text}</b>
            <span>{option.label}</span>
          </li>
        ))}
      </ul>
      <span className={css.heard} role="status">
        {options.length > 0
          ? `${options.length} completions, arrow keys choose`
          : ''}
      </span>
    </div>
  );
}

interface Props {
  search: EventSearch;
  placeholder: string;
  onSearch: (search: EventSearch) => void;
}

/** A search in plain words, which become chips, or in CEL. */
export function SearchBox({ search, placeholder, onSearch }: Props) {
  const [draft, setDraft] = useState(search.q ?? '');
  const [typed] = useDebouncedValue(draft, TYPING_MS);
  const { data: terms } = useQuery({
    ...termsQuery(typed),
    placeholderData: keepPreviousData,
  });
  /** The condition in CEL while it is edited. */
  const [cel, setCel] = useState<string>();
  // Another search, such as the one of before.
  useEffect(() => setDraft(search.q ?? ''), [search.q]);
  useEffect(
    () => setCel((now) => (now === undefined ? now : (search.filter ?? ''))),
    [search.filter],
  );
  const isSearched = terms?.q === (search.q ?? '');
  // A word that is being typed is not wrong yet.
  const isWrong =
    terms?.error &&
    (isSearched ||
      isLikeToken(terms.q) ||
      cut(terms.q, terms.error)[2].trim() !== '');
  const submit = (event: FormEvent) => {
    event.preventDefault();
    // A token would stay in the address of the page and in its history.
    if (cel === undefined && isLikeToken(draft)) return;
    onSearch(
      cel === undefined
        ? { ...search, q: draft.trim() || undefined }
        : {
            ...search,
            q: undefined,
            filter: cel.trim() || undefined,
            from: terms?.from ?? search.from,
            to: terms?.to ?? search.to,
            object: terms?.object_id ?? search.object,
            actor: terms?.actor_id ?? search.actor,
          },
    );
  };
  const others = OTHERS.flatMap(([name, say]) => {
    const value = search[name];
    return value && (name !== 'filter' || cel === undefined)
      ? [{ name, label: say(value) }]
      : [];
  });
  const words = cel === undefined ? (terms?.terms ?? []) : [];
  return (
    <form className={css.search} role="search" onSubmit={submit}>
      {cel === undefined ? (
        <Words
          value={draft}
          placeholder={placeholder}
          terms={terms}
          onChange={setDraft}
        />
      ) : (
        <div className={ui.grow}>
          <Suspense fallback={null}>
            <CodeEditor
              label="Filter, a condition in CEL on ev"
              language="cel"
              value={cel}
              onChange={setCel}
            />
          </Suspense>
        </div>
      )}
      <Button type="submit" variant="default">
        Search
      </Button>
      <Button
        variant="subtle"
        onClick={() =>
          setCel(cel === undefined && terms ? celOf(search, terms) : undefined)
        }
      >
        {cel === undefined ? 'As CEL' : 'In words'}
      </Button>
      {words.length > 0 || others.length > 0 ? (
        <ul className={css.chips} aria-label="The search">
          {words.map((term) => (
            <Chip
              key={`${term.start} ${term.label}`}
              label={term.label}
              isNegated={term.is_negated}
              onRemove={() => {
                const q = without(terms?.q ?? '', term);
                setDraft(q);
                onSearch({ ...search, q: q || undefined });
              }}
            />
          ))}
          {others.map(({ name, label }) => (
            <Chip
              key={name}
              label={label}
              onRemove={() => onSearch({ ...search, [name]: undefined })}
            />
          ))}
        </ul>
      ) : null}
      {isWrong && terms && cel === undefined ? (
        <WordError terms={terms} />
      ) : null}
    </form>
  );
}
