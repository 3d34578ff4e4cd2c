import { Button, TextInput } from '@mantine/core';
import {
  Outlet,
  useNavigate,
  useParams,
  useSearch,
} from '@tanstack/react-router';
import { type FormEvent, Suspense, useState } from 'react';
import { ApiError } from '@/api/error';
import type { JsonObject } from '@/api/json';
import { article, nounOf, pluralOf, titleOf } from '@/api/words';
import { Export } from '@/ui/export';
import { Icon } from '@/ui/icons';
import { LinkButton } from '@/ui/link-button';
import { Page, Prose } from '@/ui/page';
import { Empty, Failure, Loading } from '@/ui/states';
import ui from '@/ui/ui.module.css';
import { customOf } from './custom';
import { listAt, PAGE } from './queries';
import { ResourceTable } from './table';
import { type More, useList } from './use-list';
import { useResource } from './use-resource';

/** The filter of a list: a condition in CEL on `obj`, kept in the page's address. */
function Filter({
  value,
  error,
  onApply,
}: {
  value: string;
  error: string | undefined;
  onApply: (filter: string) => void;
}) {
  const [draft, setDraft] = useState(value);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    onApply(draft.trim());
  };
  return (
    <form className={ui.toolbar} onSubmit={submit} role="search">
      <TextInput
        className={ui.grow}
        label="Filter"
        placeholder={'obj.description == "deploys"'}
        value={draft}
        error={error}
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
            onApply('');
          }}
        >
          Clear
        </Button>
      ) : null}
    </form>
  );
}

/** How much of the list is here. The button is for who does not scroll. */
function ListEnd({
  count,
  noun,
  more,
}: {
  count: number;
  noun: string;
  more: More;
}) {
  return (
    <>
      <span className={ui.dim}>
        {more.has
          ? `${count.toLocaleString()} ${noun} loaded. Older ones follow as you scroll.`
          : `All ${count.toLocaleString()} ${noun} are loaded.`}
      </span>
      {more.has ? (
        <Button
          variant="default"
          size="xs"
          loading={more.isLoading}
          onClick={more.load}
        >
          Older
        </Button>
      ) : null}
      {more.error ? <Failure error={more.error} retry={more.load} /> : null}
    </>
  );
}

export default function ListPage() {
  const { collection } = useParams({ from: '/$collection' });
  const resource = useResource(collection);
  const search = useSearch({ from: '/$collection/_list' });
  const navigate = useNavigate();
  const list = useList(resource, search.filter);
  const custom = customOf(resource.name);
  const title = titleOf(resource.name);
  const apply = (filter: string) =>
    void navigate({
      to: '/$collection',
      params: { collection },
      search: { filter: filter || undefined },
    });
  const filterError =
    list.error instanceof ApiError && list.error.code === 'ERR_NGROK_250'
      ? list.error
      : undefined;
  const create = resource.create ? (
    <LinkButton
      to="/$collection/new"
      params={{ collection }}
      search={search}
      resetScroll={false}
      leftSection={<Icon name="plus" size={16} />}
    >
      Create {article(nounOf(resource.name))}
    </LinkButton>
  ) : null;
  const objects = list.objects ?? [];
  const empty = list.objects && objects.length === 0;
  return (
    <Page
      title={title}
      text={<Prose text={resource.description} />}
      actions={create}
    >
      {custom.ListExtra ? (
        <Suspense fallback={null}>
          <custom.ListExtra />
        </Suspense>
      ) : null}
      {resource.filterable && (search.filter || !empty) ? (
        <Filter
          key={search.filter ?? ''}
          value={search.filter ?? ''}
          error={filterError?.message}
          onApply={apply}
        />
      ) : null}
      {list.isPending ? <Loading /> : null}
      {list.error && !filterError ? (
        <Failure error={list.error} retry={list.retry} />
      ) : null}
      {empty && search.filter ? (
        <Empty
          title="Nothing matches this filter"
          action={
            <Button variant="default" onClick={() => apply('')}>
              Clear the filter
            </Button>
          }
        />
      ) : null}
      {empty && !search.filter ? (
        <Empty
          title={custom.empty?.title ?? `No ${pluralOf(resource.name)} yet`}
          text={custom.empty?.text}
          command={
            custom.empty?.command ??
            (resource.create
              ? `culvert api ${resource.name} create --help`
              : undefined)
          }
          action={create}
        />
      ) : null}
      {objects.length > 0 ? (
        <ResourceTable
          resource={resource}
          objects={objects}
          label={title}
          more={list.more}
        />
      ) : null}
      {objects.length > 0 ? (
        <div className={ui.pager}>
          {objects.length > PAGE || list.more.has ? (
            <ListEnd
              count={objects.length}
              noun={pluralOf(resource.name)}
              more={list.more}
            />
          ) : null}
          <Export
            name={resource.slug}
            columns={Object.keys(resource.item.properties ?? {}).map(
              (name) => ({ name, of: (object: JsonObject) => object[name] }),
            )}
            whole={(object) => object}
            page={async (before, signal) => {
              const { objects: rows, next } = await listAt(
                `/${resource.name}`,
                resource.listKey,
                { filter: search.filter, before },
                100,
                signal,
              );
              return { rows, next };
            }}
          />
        </div>
      ) : null}
      <Suspense fallback={null}>
        <Outlet />
      </Suspense>
    </Page>
  );
}
