import { Outlet, useNavigate, useParams, useSearch } from '@/routing/view';
import { Suspense, useCallback, useState } from 'react';
import { lazyPart } from '@/api/load';
import { ApiError } from '@/api/error';
import type { JsonObject } from '@/api/json';
import { article, nounOf, pluralOf, titleOf } from '@/api/words';
import { Button } from '@/ui/button';
import { Export } from '@/ui/export';
import { Icon } from '@/ui/icons';
import { LinkButton } from '@/ui/link-button';
import { Page, Prose } from '@/ui/page';
import { Empty, Failure, Loading } from '@/ui/states';
import ui from '@/ui/ui.module.css';
import { customOf } from './custom';
import { ColumnChoice, Filter, OrderChoice } from './list-tools';
import { type ListAddress, listAddressOf, PAGE, pageOf } from './queries';
import { ResourceTable } from './table';
import { useColumns } from './use-columns';
import { type More, useList } from './use-list';
import { useResource } from './use-resource';

const CompareBar = lazyPart(() => import('@/endpoints/compare-bar'));

/** How much of the list is here. The button is for who does not scroll. */
function ListEnd({
  count,
  noun,
  more,
  isSorted,
}: {
  count: number;
  noun: string;
  more: More;
  isSorted: boolean;
}) {
  return (
    <>
      <span className={ui.dim}>
        {more.has
          ? `${count.toLocaleString()} ${noun} loaded. ${isSorted ? 'Further' : 'Older'} ones follow as you scroll.`
          : `All ${count.toLocaleString()} ${noun} are loaded.`}
      </span>
      {more.has ? (
        <Button
          variant="default"
          size="xs"
          loading={more.isLoading}
          onClick={more.load}
        >
          {isSorted ? 'More' : 'Older'}
        </Button>
      ) : null}
      {more.error ? <Failure error={more.error} retry={more.load} /> : null}
    </>
  );
}

export default function ListPage() {
  const { collection } = useParams({ from: '/$collection' });
  const resource = useResource(collection);
  const search = useSearch(listAddressOf);
  const navigate = useNavigate();
  const { q, filter, order } = search;
  const conditions = { q, filter, order };
  const custom = customOf(resource.name);
  const title = titleOf(resource.name);
  const chosen = useColumns(resource, search.columns);
  const sorted = order?.replace(/^-/, '');
  const rank = chosen.all.find(({ key }) => key === sorted)?.rank;
  const list = useList(resource, conditions, rank);
  const [ids, setIds] = useState<ReadonlySet<string>>();
  const change = (part: ListAddress) =>
    void navigate({
      to: '/$collection',
      params: { collection },
      search: { ...search, ...part },
      resetScroll: false,
    });
  const sorting = { order, sort: (next?: string) => change({ order: next }) };
  const isSearched = q !== undefined || filter !== undefined;
  const filterError =
    list.error instanceof ApiError &&
    /^ERR_NGROK_2(50|68)$/.test(list.error.code ?? '')
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
  const next = custom.empty?.next;
  const objects = list.objects ?? [];
  const toggle = useCallback(
    (id: string) =>
      setIds((before) => {
        const next = new Set(before);
        if (!next.delete(id)) next.add(id);
        return next;
      }),
    [],
  );
  const empty = list.objects && objects.length === 0;
  return (
    <Page
      title={title}
      text={<Prose text={custom.text ?? resource.description} />}
      actions={create}
    >
      {custom.ListExtra ? (
        <Suspense fallback={null}>
          <custom.ListExtra />
        </Suspense>
      ) : null}
      {isSearched || order || !empty ? (
        <>
          <Filter
            key={filter ?? q ?? ''}
            resource={resource}
            search={conditions}
            error={filterError?.message}
            onSearch={change}
          />
          <div className={ui.toolbar}>
            <OrderChoice
              resource={resource}
              chosen={chosen}
              sorting={sorting}
            />
            <ColumnChoice
              chosen={chosen}
              onChoose={(columns) => change({ columns })}
            />
            {custom.comparable ? (
              <Button
                variant="default"
                aria-pressed={ids !== undefined}
                onClick={() => setIds(ids ? undefined : new Set())}
              >
                Compare
              </Button>
            ) : null}
          </div>
        </>
      ) : null}
      {ids ? (
        <Suspense fallback={null}>
          <CompareBar ids={ids} />
        </Suspense>
      ) : null}
      {list.isPending ? <Loading /> : null}
      {list.error && !filterError ? (
        <Failure error={list.error} retry={list.retry} />
      ) : null}
      {empty && isSearched ? (
        <Empty
          title="Nothing matches this filter"
          action={
            <Button
              variant="default"
              onClick={() => change({ q: undefined, filter: undefined })}
            >
              Clear the filter
            </Button>
          }
        />
      ) : null}
      {empty && !isSearched ? (
        <Empty
          title={custom.empty?.title ?? `No ${pluralOf(resource.name)} yet`}
          text={custom.empty?.text}
          command={
            custom.empty?.command ??
            (resource.create
              ? `culvert api ${resource.name} create --help`
              : undefined)
          }
          action={
            next ? (
              <LinkButton
                variant="default"
                to="/$collection"
                params={{ collection: next[0] }}
                search={{}}
              >
                {next[1]}
              </LinkButton>
            ) : (
              create
            )
          }
        />
      ) : null}
      {list.isComplete ? null : (
        <p role="status" className={ui.hint}>
          There are too many {pluralOf(resource.name)} to search and sort all of
          them: the oldest ones are left out.
        </p>
      )}
      {objects.length > 0 ? (
        <ResourceTable
          resource={resource}
          objects={objects}
          label={title}
          more={list.more}
          columns={chosen.columns}
          isUsual={chosen.isUsual}
          sorting={sorting}
          choosing={ids && { ids, toggle }}
        />
      ) : null}
      {objects.length > 0 ? (
        <div className={ui.pager}>
          {objects.length > PAGE || list.more.has ? (
            <ListEnd
              count={objects.length}
              noun={pluralOf(resource.name)}
              more={list.more}
              isSorted={order !== undefined}
            />
          ) : null}
          <Export
            name={resource.slug}
            columns={Object.keys(resource.item.properties ?? {}).map(
              (name) => ({ name, of: (object: JsonObject) => object[name] }),
            )}
            whole={(object) => object}
            page={async (after, signal) => {
              if (rank) return { rows: objects, next: undefined };
              const { objects: rows, next } = await pageOf(
                resource,
                conditions,
                after,
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
