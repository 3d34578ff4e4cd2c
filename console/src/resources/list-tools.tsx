import { Checkbox, NativeSelect, TextInput } from '@mantine/core';
import { type FormEvent, useId, useState } from 'react';
import { useModel } from '@/api/document';
import type { Resource } from '@/api/model';
import { isLikeToken, TOKEN_REFUSED } from '@/api/token';
import { Button } from '@/ui/button';
import ui from '@/ui/ui.module.css';
import { COLUMNS_MAX, nameField } from './columns';
import type { ListSearch } from './queries';
import type { Sorting } from './table';
import type { Chosen } from './use-columns';

/** A filter of a list is CEL on `obj`; other texts are words. */
const isCel = (text: string) => /\bobj\./.test(text);

interface FilterProps {
  resource: Resource;
  search: ListSearch;
  error: string | undefined;
  onSearch: (search: Pick<ListSearch, 'q' | 'filter'>) => void;
}

/** The search of a list: words, or a condition in CEL. */
export function Filter({ resource, search, error, onSearch }: FilterProps) {
  const value = search.filter ?? search.q ?? '';
  const [draft, setDraft] = useState(value);
  const isSecret = isLikeToken(draft);
  const apply = (text: string) =>
    onSearch(
      resource.filterable && isCel(text)
        ? { filter: text, q: undefined }
        : { q: text || undefined, filter: undefined },
    );
  const submit = (event: FormEvent) => {
    event.preventDefault();
    // A token would stay in the address of the page and in its history.
    if (!isSecret) apply(draft.trim());
  };
  return (
    <form className={ui.toolbar} onSubmit={submit} role="search">
      <TextInput
        className={ui.grow}
        label="Filter"
        placeholder={
          resource.filterable
            ? 'A name, host, ID or description, or obj.description == "deploys"'
            : 'A name, host, ID or description'
        }
        value={draft}
        error={isSecret ? TOKEN_REFUSED : error}
        autoComplete="off"
        spellCheck={false}
        onChange={(event) => setDraft(event.currentTarget.value)}
      />
      <Button type="submit" variant="default">
        Apply
      </Button>
      {value ? (
        <Button
          variant="subtle"
          onClick={() => {
            setDraft('');
            apply('');
          }}
        >
          Clear
        </Button>
      ) : null}
    </form>
  );
}

/** The order of a list. Tables have it in their heads too, which phones do not show. */
export function OrderChoice({
  resource,
  chosen,
  sorting: { order, sort },
}: {
  resource: Resource;
  chosen: Chosen;
  sorting: Sorting;
}) {
  const { schemas } = useModel();
  const name = nameField(resource, schemas);
  const sorted = order?.replace(/^-/, '');
  const fields = [
    ...(name ? [{ key: name, label: 'Name', isDown: false }] : []),
    ...chosen.all.filter(
      ({ key, isSortable }) =>
        isSortable &&
        (key === sorted || chosen.columns.some((one) => one.key === key)),
    ),
  ];
  const options = fields.flatMap(({ key, label, isDown }) => {
    const up = { value: key, label: `${label} ↑` };
    const down = { value: `-${key}`, label: `${label} ↓` };
    return isDown ? [down, up] : [up, down];
  });
  const isKnown = !order || options.some(({ value }) => value === order);
  return (
    <NativeSelect
      label="Order"
      value={order ?? ''}
      data={[
        { value: '', label: 'Newest first' },
        ...options,
        ...(isKnown ? [] : [{ value: order, label: order }]),
      ]}
      onChange={(event) => sort(event.currentTarget.value || undefined)}
    />
  );
}

/** Which columns the table has. */
export function ColumnChoice({
  chosen,
  onChoose,
}: {
  chosen: Chosen;
  onChoose: (columns: string | undefined) => void;
}) {
  const [isOpen, setOpen] = useState(false);
  const id = useId();
  const keys = chosen.columns.map(({ key }) => key);
  const toggle = (key: string) =>
    onChoose(
      chosen.choose(
        keys.includes(key)
          ? keys.filter((one) => one !== key)
          : // In the order of the choice, so that a column is where it is expected.
            chosen.all
              .map((column) => column.key)
              .filter((one) => one === key || keys.includes(one)),
      ),
    );
  return (
    <>
      <Button
        variant="default"
        aria-expanded={isOpen}
        aria-controls={id}
        onClick={() => setOpen(!isOpen)}
      >
        Columns
      </Button>
      <fieldset id={id} className={ui.columnChoice} hidden={!isOpen}>
        <legend>Columns, at most {COLUMNS_MAX}</legend>
        {chosen.all.map(({ key, label }) => (
          <Checkbox
            key={key}
            label={label}
            checked={keys.includes(key)}
            disabled={!keys.includes(key) && keys.length >= COLUMNS_MAX}
            onChange={() => toggle(key)}
          />
        ))}
        {chosen.isUsual ? null : (
          <Button
            size="compact-sm"
            variant="subtle"
            onClick={() => onChoose(chosen.choose(undefined))}
          >
            Usual columns
          </Button>
        )}
      </fieldset>
    </>
  );
}
