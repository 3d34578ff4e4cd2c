import { useQuery } from '@tanstack/react-query';
import { useModel } from '@/api/document';
import { type JsonObject, text } from '@/api/json';
import { listQuery } from '@/resources/queries';
import { ResourceTable } from '@/resources/table';
import { LinkButton } from '@/ui/link-button';
import { Section } from '@/ui/page';
import { Failure, Loading } from '@/ui/states';
import ui from '@/ui/ui.module.css';

const MOST = 100;

/** The rules of an IP policy. */
export default function IpPolicyExtra({ object }: { object: JsonObject }) {
  const resource = useModel().resources.get('ip_policy_rules');
  if (!resource) throw new Error('The API has no rules of IP policies.');
  const filter = `obj.ip_policy == ${JSON.stringify(text(object.id))}`;
  const list = useQuery(listQuery(resource, { filter }, MOST));
  const rules = list.data?.objects ?? [];
  const add = resource.create ? (
    <LinkButton
      size="xs"
      variant="default"
      to="/$collection/new"
      params={{ collection: resource.slug }}
      search={{}}
    >
      Add a rule
    </LinkButton>
  ) : null;
  const all = list.data?.next ? (
    <LinkButton
      size="xs"
      variant="default"
      to="/$collection"
      params={{ collection: resource.slug }}
      search={{ filter }}
    >
      See all rules
    </LinkButton>
  ) : null;
  return (
    <Section
      title="Rules"
      actions={
        <>
          {all}
          {add}
        </>
      }
    >
      {list.isPending ? <Loading /> : null}
      {list.error ? (
        <Failure error={list.error} retry={() => void list.refetch()} />
      ) : null}
      {list.data && rules.length === 0 ? (
        <p className={ui.dim}>
          None. Without an allow rule, this policy allows no address.
        </p>
      ) : null}
      {rules.length > 0 ? (
        <ResourceTable
          resource={resource}
          objects={rules}
          label="Rules"
          parent={object}
        />
      ) : null}
    </Section>
  );
}
