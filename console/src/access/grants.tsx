import { useQuery } from '@tanstack/react-query';
import { type JsonObject, text } from '@/api/json';
import { useResource } from '@/resources/use-resource';
import { listQuery } from '@/resources/queries';
import { ResourceTable } from '@/resources/table';
import { Section } from '@/ui/page';
import ui from '@/ui/ui.module.css';

/** The grants on an object, and those to it, as far as the caller sees them. */
export default function Grants({
  collection,
  object,
}: {
  collection: string;
  object: JsonObject;
}) {
  const id = text(object.id);
  const grants = useResource('grants');
  const filter = `obj.object_id == "${id}" || obj.grantee == "${id}"`;
  const { data } = useQuery(listQuery(grants, { filter }));
  if (!data || data.objects.length === 0) return null;
  const isVault = collection === 'vaults' || collection === 'vault_secrets';
  return (
    <Section title="Grants">
      <ResourceTable
        resource={grants}
        objects={data.objects}
        label="Grants"
        parent={object}
      />
      {isVault ? (
        <p className={ui.hint}>
          A grant is as good as reading the values: the upstreams of the grantee
          get them.
        </p>
      ) : null}
    </Section>
  );
}
