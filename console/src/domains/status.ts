import { type JsonObject, isObject, text } from '@/api/json';
import type { Tone } from '@/ui/page';

export interface DomainState {
  tone: Tone;
  word: string;
  /** What is wrong, in the server's words. */
  why?: string;
  retriesAt?: string;
  renewsAt?: string;
}

/** How the certificate of a domain is. */
export function domainState(domain: JsonObject): DomainState {
  const status = isObject(domain.certificate_management_status)
    ? domain.certificate_management_status
    : undefined;
  const job = isObject(status?.provisioning_job)
    ? status.provisioning_job
    : undefined;
  const renewsAt = text(status?.renews_at);
  if (job) {
    const failed = text(job.error_code) !== '';
    const retriesAt = text(job.retries_at);
    return {
      tone: failed ? 'bad' : 'accent',
      word: failed ? 'Not issued' : 'Being issued',
      why: text(job.msg),
      ...(retriesAt ? { retriesAt } : {}),
    };
  }
  if (isObject(domain.certificate))
    return {
      tone: 'ok',
      word: domain.certificate_management_policy ? 'Issued' : 'Uploaded',
      ...(renewsAt ? { renewsAt } : {}),
    };
  if (domain.certificate_management_policy)
    return { tone: 'accent', word: 'Waiting' };
  return { tone: 'quiet', word: "The platform's" };
}
