import type { ApiError } from '@/api/error';
import type { Resource } from '@/api/model';
import { nounOf } from '@/api/words';
import { LinkButton } from '@/ui/link-button';
import { Codes, Empty } from '@/ui/states';

/** An address whose object is not there. The audit log has its deletion. */
export function Gone({
  resource,
  id,
  error,
}: {
  resource: Resource;
  id: string;
  error: ApiError;
}) {
  return (
    <>
      <Empty
        title="It is not there"
        text={
          <>
            No {nounOf(resource.name)} has the ID <code>{id}</code>. It may have
            been deleted: the audit log says by whom.
          </>
        }
        action={
          <LinkButton variant="default" to="/audit" search={{ object: id }}>
            Search the audit log
          </LinkButton>
        }
      />
      <Codes error={error} />
    </>
  );
}
