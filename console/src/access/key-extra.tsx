import { useQuery } from '@tanstack/react-query';
import { call } from '@/api/http';
import { type JsonObject, isObject, text } from '@/api/json';
import { useModel } from '@/api/document';
import { ActionButton } from '@/resources/actions';
import { roleOf } from '@/session/roles';
import { Value } from '@/resources/value';
import { Glance } from '@/ui/glance';
import { LinkButton } from '@/ui/link-button';
import { Section, Tag } from '@/ui/page';
import { Failure, Loading } from '@/ui/states';
import { Time } from '@/ui/time';
import { KeyCalls } from './key-calls';
import ui from '@/ui/ui.module.css';

const strings = (value: unknown): string[] =>
  Array.isArray(value) ? value.map(String) : [];

function Restriction({
  label,
  children,
}: {
  label: string;
  children: React.ReactNode;
}) {
  return [<dt key="label">{label}</dt>, <dd key="value">{children}</dd>];
}

/** When and from where something was used last. */
function LastUse({ at, from }: { at: string; from: string }) {
  if (!at) return 'Never';
  return (
    <>
      <Time value={at} relative /> from <code>{from}</code>
    </>
  );
}

const RULES: Record<string, string> = {
  maximum_age: 'Its token is older than the maximum age',
  required_end: 'It has no end',
  admin_networks: 'It is one of an admin and works from anywhere',
};

/** What a key may do, and when and where it was used last. */
export default function KeyExtra({ object }: { object: JsonObject }) {
  const id = String(object.id);
  const resource = useModel().resources.get('api_keys');
  const get = resource?.below.find((one) => one.command === 'get-restrictions');
  const update = resource?.below.find(
    (one) => one.command === 'update-restrictions',
  );
  const answer = useQuery({
    queryKey: ['api_keys', 'below', id, 'restrictions'],
    queryFn: async ({ signal }) =>
      (await call(
        'GET',
        `/api_keys/${encodeURIComponent(id)}/restrictions`,
        undefined,
        signal,
      )) as JsonObject,
    enabled: Boolean(get),
  });
  if (!get) return null;
  const set = answer.data;
  const scopes = strings(set?.scopes);
  const networks = strings(set?.networks);
  const end = text(set?.expires_at);
  const previous = text(set?.previous_token_expires_at);
  const broken = strings(set?.broken_rules);
  const oldAt = text(set?.maximum_age_at);
  const rotated = text(set?.rotated_at);
  const endOverlap = resource?.below.find(
    (one) => one.command === 'end-overlap',
  );
  const leak = isObject(set?.leak) ? set.leak : undefined;
  const remove = resource?.below.find(
    (one) => one.command === 'delete-restrictions',
  );
  const isRestricted =
    Boolean(set?.role) ||
    scopes.length > 0 ||
    networks.length > 0 ||
    end !== '';
  const edit = update ? (
    <LinkButton
      size="xs"
      variant="default"
      to="/$collection/$id/do/$action"
      params={{ collection: 'api_keys', id, action: update.command }}
    >
      Change restrictions
    </LinkButton>
  ) : null;
  const restrictions = (
    <Section
      title="Restrictions and use"
      actions={
        <>
          {resource && remove && isRestricted ? (
            <ActionButton
              resource={resource}
              operation={remove}
              id={id}
              label="Remove restrictions"
              danger
            />
          ) : null}
          {resource && endOverlap && previous ? (
            <ActionButton
              resource={resource}
              operation={endOverlap}
              id={id}
              label="End the overlap"
            />
          ) : null}
          {edit}
        </>
      }
    >
      {answer.isPending ? <Loading /> : null}
      {answer.error ? <Failure error={answer.error} /> : null}
      {set ? (
        <dl className={ui.fields}>
          {leak ? (
            <Restriction label="Leaked">
              <Tag tone="bad">{leak.revoked ? 'Revoked' : 'Still works'}</Tag>{' '}
              Its token was found in public{' '}
              <Time value={text(leak.at)} relative />
              {leak.url ? (
                <>
                  : <code>{text(leak.url)}</code>
                </>
              ) : null}
              . Rotate the key for a new token.
            </Restriction>
          ) : null}
          {broken.length > 0 ? (
            <Restriction label="Breaks rules">
              {broken.map((one) => (
                <Tag key={one} tone="bad">
                  {RULES[one] ?? one}
                </Tag>
              ))}
            </Restriction>
          ) : null}
          <Restriction label="Role">
            {set.role ? roleOf(text(set.role)) : 'The role of its owner'}
          </Restriction>
          <Restriction label="Scopes">
            {scopes.length > 0
              ? scopes.map((one) => <Tag key={one}>{one}</Tag>)
              : 'All'}
          </Restriction>
          <Restriction label="Networks">
            {networks.length > 0
              ? networks.map((one) => <Tag key={one}>{one}</Tag>)
              : 'Anywhere'}
          </Restriction>
          {oldAt ? (
            <Restriction label="Maximum age">
              <Time value={oldAt} />
            </Restriction>
          ) : null}
          {rotated ? (
            <Restriction label="Rotated">
              <Time value={rotated} relative />
            </Restriction>
          ) : null}
          {previous ? (
            <>
              <Restriction label="Token before the rotation works until">
                <Time value={previous} />
              </Restriction>
              <Restriction label="Token before the rotation last used">
                <LastUse
                  at={text(set.previous_token_last_used_at)}
                  from={text(set.previous_token_last_used_from)}
                />
              </Restriction>
            </>
          ) : null}
          {rotated ? (
            <Restriction label="New token last used">
              <LastUse
                at={text(set.token_last_used_at)}
                from={text(set.token_last_used_from)}
              />
            </Restriction>
          ) : null}
        </dl>
      ) : null}
    </Section>
  );
  const ends = end ? (
    <>
      <Time value={end} />{' '}
      {Date.parse(end) <= Date.now() ? <Tag tone="bad">Expired</Tag> : null}
    </>
  ) : (
    'Never'
  );
  return (
    <>
      <Glance
        items={[
          ['Owner', <Value key="owner" value={object.owner_id} />],
          ...(set
            ? ([
                [
                  'Last used',
                  <LastUse
                    key="use"
                    at={text(set.last_used_at)}
                    from={text(set.last_used_from)}
                  />,
                ],
                ['Expires', ends],
              ] as [string, React.ReactNode][])
            : []),
        ]}
      />
      {restrictions}
      <KeyCalls id={id} />
    </>
  );
}
