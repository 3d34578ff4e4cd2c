import { useQuery } from '@tanstack/react-query';
import { Link } from '@/routing/link';
import { call } from '@/api/http';
import { isObject, text } from '@/api/json';
import { nounOf } from '@/api/words';
import { escaped } from '@/ui/escaped';
import ui from '@/ui/ui.module.css';

interface Referrer {
  id: string;
  name: string;
  collection: string;
  onDelete: string;
}

interface Referrers {
  all: Referrer[];
  hasOthers: boolean;
  blocks: boolean;
}

/** What refers to an object, as far as the person may see it. Asked for again while the question is open. */
export function useReferrers(id: string, enabled: boolean) {
  return useQuery<Referrers>({
    queryKey: ['referrers', id],
    enabled,
    refetchInterval: 5000,
    queryFn: async ({ signal }) => {
      const query = new URLSearchParams({ object_id: id });
      const found = await call('GET', `/referrers?${query}`, undefined, signal);
      const answer = isObject(found) ? found : {};
      const all = Array.isArray(answer.referrers) ? answer.referrers : [];
      return {
        all: all.filter(isObject).map((one) => ({
          id: text(one.id),
          name: escaped(text(one.name)),
          collection: text(one.collection),
          onDelete: text(one.on_delete),
        })),
        hasOthers: answer.has_others === true,
        blocks: answer.blocks === true,
      };
    },
  });
}

const EFFECTS: Record<string, string> = {
  block: 'uses it',
  cascade: 'is deleted with it',
  detach: 'stays, without it',
};

/** The objects that refer to another one, each with what its deletion means for it. */
export function ReferrerList({ referrers }: { referrers: Referrers }) {
  if (referrers.all.length === 0 && !referrers.hasOthers) return null;
  return (
    <div>
      <p>{referrers.all.length > 0 ? 'These refer to it:' : null}</p>
      <ul className={ui.items} aria-label="Refer to it">
        {referrers.all.map((one) => (
          <li key={one.id}>
            <Link
              to="/$collection/$id"
              params={{
                collection: one.collection.replaceAll('/', '.'),
                id: one.id,
              }}
            >
              {one.name || one.id}
            </Link>{' '}
            <span className={ui.dim}>
              {nounOf(one.collection)}, {EFFECTS[one.onDelete] ?? one.onDelete}
            </span>
          </li>
        ))}
        {referrers.hasOthers ? (
          <li className={ui.dim}>
            {referrers.all.length > 0 ? 'Others' : 'Objects'} that are not shown
            to you refer to it too.
          </li>
        ) : null}
      </ul>
      {referrers.blocks ? (
        <p role="alert" className="field-error">
          It cannot be deleted while it is in use. Change or delete what uses it
          first.
        </p>
      ) : null}
    </div>
  );
}
