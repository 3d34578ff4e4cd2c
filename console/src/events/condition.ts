import { type Json, isObject, text } from '@/api/json';

const percent = (share: unknown) =>
  `${Math.round(Number(share) * 1000) / 10} %`;

/** The condition of an alert rule as a sentence. */
export function inWords(condition: Json | undefined): string {
  if (!isObject(condition)) return '';
  const of = (field: string) => text(condition[field]);
  const requests = `of at least ${String(condition.min_requests)} requests to an endpoint in ${of('over')}`;
  switch (condition.type) {
    case 'agent_offline':
      return `No agent is connected with a credential for ${of('for')}.`;
    case 'certificate_expiring':
      return `A certificate expires within ${of('within')}.`;
    case 'destination_failing':
      return `An event destination accepts nothing for ${of('for')}.`;
    case 'endpoint_without_upstream':
      return `None of at least ${String(condition.min_requests)} requests and connections to an endpoint in ${of('over')} reaches an upstream.`;
    case 'error_rate':
      return `More than ${percent(condition.above)} ${requests} fail.`;
    case 'key_expiring':
      return `An API key expires within ${of('within')}.`;
    case 'key_unused':
      return `An API key is not used for ${of('for')}.`;
    case 'latency':
      return `The ${of('quantile')} of the durations ${requests} is above ${String(condition.above_ms)} ms.`;
    case 'sign_ins_failed':
      return `${String(condition.count)} sign-ins to the console are refused in ${of('over')}.`;
    default:
      return of('type');
  }
}
