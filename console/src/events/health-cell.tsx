import { useQuery } from '@tanstack/react-query';
import type { JsonObject } from '@/api/json';
import { HealthTag } from './health-tag';
import { healthQuery } from './queries';

export default function HealthCell({ object }: { object: JsonObject }) {
  const { data, error } = useQuery(healthQuery(String(object.id)));
  if (error) return <>Unknown</>;
  return data ? <HealthTag health={data} /> : <>…</>;
}
