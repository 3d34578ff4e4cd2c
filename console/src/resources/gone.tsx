import { ApiError } from '@/api/error';
import { useModelIfThere } from '@/api/document';
import { hasEvents } from '@/api/unlisted';
import type { Resource } from '@/api/model';
import { nounOf, pluralOf } from '@/api/words';
import { LinkButton } from '@/ui/link-button';
import { Codes, Empty } from '@/ui/states';

/** An address whose object is not there. Says where its deletion is recorded, if it is. */
export function Gone({ resource, id, error }: { resource: Resource; id: string; error: ApiError }) {
  const model = useModelIfThere();
  const isRecorded = model ? hasEvents(model, resource.name) : false;
  const search = { view: 'kept' as const, object: id };
  const text = isRecorded
    ? 'It may have been deleted: the audit log says by whom.'
    : `It may have been deleted. Changes of ${pluralOf(resource.name)} have no event types, so no log says by whom.`;
  return (
    <>
      <Empty title="It is not there" text={<>No {nounOf(resource.name)} has the ID <code>{id}</code>. {text}</>} action={(
        isRecorded ? <LinkButton variant="default" to="/audit" search={search}>Search the audit log</LinkButton>
          : resource.name === 'endpoints' ? <LinkButton variant="default" to="/traffic" search={search}>See its kept requests</LinkButton> : null
      )} />
      <Codes error={error} />
    </>
  );
}
