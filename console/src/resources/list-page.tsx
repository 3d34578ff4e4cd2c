import { Button, TextInput } from '@mantine/core';
import { useQuery } from '@tanstack/react-query';
import { Outlet, useNavigate, useParams, useSearch } from '@tanstack/react-router';
import { type FormEvent, Suspense, useState } from 'react';
import { ApiError } from '@/api/error';
import { article, nounOf, pluralOf, titleOf } from '@/api/words';
import { Icon } from '@/ui/icons';
import { LinkButton } from '@/ui/link-button';
import { Page, Prose } from '@/ui/page';
import { Empty, Failure, Loading } from '@/ui/states';
import ui from '@/ui/ui.module.css';
import { customOf } from './custom';
import { listQuery } from './queries';
import { ResourceTable } from './table';
import { useResource } from './use-resource';

/** The filter of a list: a condition in CEL on `obj`, kept in the page's address. */
function Filter({ value, error, onApply }: { value: string; error: string | undefined; onApply: (filter: string) => void }) {
  const [draft, setDraft] = useState(value);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    onApply(draft.trim());
  };
  return (
    <form className={ui.toolbar} onSubmit={submit} role="search">
      <TextInput className={ui.grow} label="Filter" placeholder={'obj.description == "deploys"'} value={draft} error={error} onChange={(event) => setDraft(event.currentTarget.value)} />
      <Button type="submit" variant="default">Apply</Button>
      {value ? <Button variant="subtle" onClick={() => { setDraft(''); onApply(''); }}>Clear</Button> : null}
    </form>
  );
}

export default function ListPage() {
  const { collection } = useParams({ from: '/$collection' });
  const resource = useResource(collection);
  const search = useSearch({ from: '/$collection/_list' });
  const navigate = useNavigate();
  const list = useQuery({ ...listQuery(resource, search), refetchInterval: search.before ? false : 5000 });
  const custom = customOf(resource.name);
  const title = titleOf(resource.name);
  const apply = (filter: string) => void navigate({ to: '/$collection', params: { collection }, search: { filter: filter || undefined } });
  const filterError = list.error instanceof ApiError && list.error.code === 'ERR_NGROK_250' ? list.error : undefined;
  const create = resource.create ? (
    <LinkButton to="/$collection/new" params={{ collection }} search={search} leftSection={<Icon name="plus" size={16} />}>
      Create {article(nounOf(resource.name))}
    </LinkButton>
  ) : null;
  const objects = list.data?.objects ?? [];
  const empty = list.data && objects.length === 0;
  return (
    <Page title={title} text={<Prose text={resource.description} />} actions={create}>
      {custom.ListExtra ? <Suspense fallback={null}><custom.ListExtra /></Suspense> : null}
      {resource.filterable && (search.filter || !empty) ? <Filter key={search.filter ?? ''} value={search.filter ?? ''} error={filterError?.message} onApply={apply} /> : null}
      {list.isPending ? <Loading /> : null}
      {list.error && !filterError ? <Failure error={list.error} retry={() => void list.refetch()} /> : null}
      {empty && search.filter ? <Empty title="Nothing matches this filter" action={<Button variant="default" onClick={() => apply('')}>Clear the filter</Button>} /> : null}
      {empty && !search.filter ? (
        <Empty title={custom.empty?.title ?? `No ${pluralOf(resource.name)} yet`}
          text={custom.empty?.text} command={custom.empty?.command ?? (resource.create ? `culvert api ${resource.name} create --help` : undefined)} action={create} />
      ) : null}
      {objects.length > 0 ? <ResourceTable resource={resource} objects={objects} label={title} /> : null}
      {list.data?.next || search.before ? (
        <div className={ui.pager}>
          <LinkButton variant="default" size="xs" to="/$collection" params={{ collection }} search={{ filter: search.filter }} disabled={!search.before}>Newest</LinkButton>
          <LinkButton variant="default" size="xs" to="/$collection" params={{ collection }} search={{ filter: search.filter, before: list.data?.next }} disabled={!list.data?.next}>Older</LinkButton>
        </div>
      ) : null}
      <Suspense fallback={null}><Outlet /></Suspense>
    </Page>
  );
}
