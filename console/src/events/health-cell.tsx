import { useQuery } from '@tanstack/react-query';
import type { JsonObject } from '@/api/json';
import { isWhole } from './destination-rights';
import { HealthTag } from './health-tag';
import { healthQuery } from './queries';

export default function HealthCell({ object }: { object: JsonObject }) {
  const enabled = isWhole(object);
  const { data, error } = useQuery({
    ...healthQuery(String(object.id)),
    enabled,
  });
  if (!enabled) return <>Visible to its owner</>;
  if (error) return <>Unknown</>;
  return data ? <HealthTag health={data} /> : <>…</>;
}
