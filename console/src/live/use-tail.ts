import { useEffect, useMemo, useSyncExternalStore } from 'react';
import { Tail, type TailOptions } from './tail';

/** Follows events for as long as the component is there, unless it is off. */
export function useTail({
  types,
  filter,
  object,
  actor,
  fields,
  resumes,
  onEvents,
  isOff = false,
}: TailOptions & { isOff?: boolean }): Tail {
  const kinds = types.join(',');
  const wanted = fields?.join(',');
  const tail = useMemo(
    () =>
      new Tail({
        types: kinds ? kinds.split(',') : [],
        filter,
        object,
        actor,
        ...(wanted ? { fields: wanted.split(',') } : {}),
        ...(resumes ? { resumes } : {}),
        ...(onEvents ? { onEvents } : {}),
      }),
    [kinds, filter, object, actor, wanted, resumes, onEvents],
  );
  useEffect(() => {
    if (isOff) return undefined;
    tail.start();
    return () => tail.close();
  }, [tail, isOff]);
  useSyncExternalStore(tail.watch, () => tail.version);
  return tail;
}
