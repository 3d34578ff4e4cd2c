import { useEffect, useMemo, useSyncExternalStore } from 'react';
import { Tail, type TailOptions } from './tail';

/** Follows events for as long as the component is there. */
export function useTail({
  types,
  filter,
  fields,
  resumes,
  onEvents,
}: TailOptions): Tail {
  const kinds = types.join(',');
  const wanted = fields?.join(',');
  const tail = useMemo(
    () =>
      new Tail({
        types: kinds ? kinds.split(',') : [],
        filter,
        ...(wanted ? { fields: wanted.split(',') } : {}),
        ...(resumes ? { resumes } : {}),
        ...(onEvents ? { onEvents } : {}),
      }),
    [kinds, filter, wanted, resumes, onEvents],
  );
  useEffect(() => {
    tail.start();
    return () => tail.close();
  }, [tail]);
  useSyncExternalStore(tail.watch, () => tail.version);
  return tail;
}
