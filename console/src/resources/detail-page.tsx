import { useQuery } from '@tanstack/react-query';
import { Link } from '@/routing/link';
import { Outlet, useParams } from '@/routing/view';
import { Suspense } from 'react';
import { lazyPart } from '@/api/load';
import { ApiError } from '@/api/error';
import { type Json, type JsonObject, isObject } from '@/api/json';
import type { Resource } from '@/api/model';
import { humanize, nounOf, titleOf } from '@/api/words';
import { CopyButton } from '@/ui/copy';
import { Icon } from '@/ui/icons';
import { LinkButton } from '@/ui/link-button';
import { Page, Section } from '@/ui/page';
import { Failure, Loading } from '@/ui/states';
import ui from '@/ui/ui.module.css';
import { Actions } from './actions';
import { Below } from './below';
import { customOf } from './custom';
import { DeleteButton } from './delete-button';
import { Gone } from './gone';
import { headingOf } from './names';
import { objectQuery } from './queries';
import { useResource } from './use-resource';
import { Fields } from './value';

const Grants = lazyPart(() => import('@/access/grants'));

/** The collections of objects whose use can be granted, or to which a grant can be given. */
const GRANTS = new Set([
  'bot_users',
  'endpoints',
  'event_destinations',
  'users',
  'vault_secrets',
  'vaults',
]);

function isUnset(value: Json | undefined): boolean {
  return (
    value === null ||
    value === '' ||
    (Array.isArray(value) && value.length === 0) ||
    (isObject(value) && Object.values(value).every(isUnset))
  );
}

/** All fields that are set, and the names of the others. */
function Details({
  title,
  resource,
  object,
}: {
  title: string;
  resource: Resource;
  object: JsonObject;
}) {
  const unset = Object.keys(object).filter(
    (key) => isUnset(object[key]) && key !== 'token',
  );
  return (
    <Section title={title}>
      <Fields
        value={object}
        schema={resource.item}
        skip={['id', 'uri', 'token', ...unset]}
      />
      {unset.length > 0 ? (
        <p className={ui.hint}>Not set: {unset.map(humanize).join(', ')}</p>
      ) : null}
    </Section>
  );
}

export default function DetailPage() {
  const { collection, id } = useParams({ from: '/$collection/$id' });
  const resource = useResource(collection);
  const {
    data: object,
    error,
    refetch,
  } = useQuery(objectQuery(resource.name, id));
  const { DetailExtra, handled = [] } = customOf(resource.name);
  const above = (
    <Link
      className={ui.back}
      to="/$collection"
      params={{ collection }}
      search={{}}
    >
      <Icon name="back" size={14} />
      {titleOf(resource.name)}
    </Link>
  );
  if (error instanceof ApiError && error.status === 404)
    return (
      <Page title={titleOf(resource.name)} above={above}>
        <Gone resource={resource} id={id} error={error} />
      </Page>
    );
  if (error)
    return (
      <Page title={titleOf(resource.name)} above={above}>
        <Failure error={error} retry={() => void refetch()} />
      </Page>
    );
  if (!object)
    return (
      <Page title={titleOf(resource.name)} above={above}>
        <Loading />
      </Page>
    );
  const fixed = customOf(resource.name).fixed?.(object);
  const actions = (
    <>
      <Actions {...{ resource, object, handled }} isRemoval={false} />
      <LinkButton variant="default" to="/audit" search={{ object: id }}>
        History
      </LinkButton>
      {resource.update && !fixed ? (
        <LinkButton
          variant="default"
          to="/$collection/$id/edit"
          params={{ collection, id }}
          resetScroll={false}
        >
          Edit
        </LinkButton>
      ) : null}
      <Actions {...{ resource, object, handled }} isRemoval />
      {resource.remove && !fixed ? (
        <DeleteButton
          resource={resource}
          operation={resource.remove}
          object={object}
        />
      ) : null}
    </>
  );
  const idLine = (
    <span className={ui.idline}>
      <code>{id}</code>
      <CopyButton value={id} label="Copy the id" />
    </span>
  );
  return (
    <Page
      title={headingOf(object, nounOf(resource.name))}
      text={idLine}
      actions={actions}
      above={above}
    >
      {fixed ? <p className={ui.dim}>{fixed}</p> : null}
      {DetailExtra ? (
        <Suspense fallback={<Loading />}>
          <DetailExtra object={object} />
        </Suspense>
      ) : null}
      {DetailExtra ? null : (
        <Details title="Details" resource={resource} object={object} />
      )}
      <Below resource={resource} object={object} handled={handled} />
      {GRANTS.has(resource.name) ? (
        <Suspense fallback={null}>
          <Grants collection={resource.name} object={object} />
        </Suspense>
      ) : null}
      {DetailExtra ? (
        <Details title="All fields" resource={resource} object={object} />
      ) : null}
      <Suspense fallback={null}>
        <Outlet />
      </Suspense>
    </Page>
  );
}
