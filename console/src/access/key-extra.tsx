import { useQuery } from '@tanstack/react-query';
import { call } from '@/api/http';
import { type JsonObject, isObject, text } from '@/api/json';
import { useModel } from '@/api/document';
import { ActionButton } from '@/resources/actions';
import { roleOf } from '@/session/roles';
import { LinkButton } from '@/ui/link-button';
import { Section, Tag } from '@/ui/page';
import { Failure, Loading } from '@/ui/states';
import { Time } from '@/ui/time';
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
  const used = text(set?.last_used_at);
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
  return (
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
          <Restriction label="Expires">
            {end ? (
              <>
                <Time value={end} />{' '}
                {Date.parse(end) <= Date.now() ? (
                  <Tag tone="bad">Expired</Tag>
                ) : null}
              </>
            ) : (
              'Never'
            )}
          </Restriction>
          {previous ? (
            <Restriction label="Token before the rotation works until">
              <Time value={previous} />
            </Restriction>
          ) : null}
          <Restriction label="Last used">
            {used ? (
              <>
                <Time value={used} relative /> from{' '}
                <code>{text(set.last_used_from)}</code>
              </>
            ) : (
              'Never'
            )}
          </Restriction>
        </dl>
      ) : null}
    </Section>
  );
}
