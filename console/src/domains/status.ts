import { type JsonObject, isObject, text } from '@/api/json';
import type { Tone } from '@/ui/page';

export interface DomainState {
  tone: Tone;
  word: string;
  /** What is wrong, in the server's words. */
  why?: string;
  retriesAt?: string;
  renewsAt?: string;
  /** The step that fails, by its number in `STEPS`. */
  failed?: number;
}

/** What must be true for a certificate, in this order, and what to do if it is not. */
export const STEPS = [
  {
    title: 'The server has a certificate authority',
    todo: 'Set acme.directory_url in the settings of the server, and restart it. Or upload a certificate of your own and choose it in this domain.',
  },
  {
    title: 'The name leads to this server',
    todo: 'Set the DNS records beside this at the provider of the domain, and wait until they are visible.',
  },
  {
    title: 'The authority reaches the server and issues',
    todo: 'Port 80 or 443 of the server must be reached from outside. The server tries again by itself.',
  },
];

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
    const step = text(job.msg).includes('acme.directory_url')
      ? 0
      : job.error_code === 'DNS_ERROR'
        ? 1
        : 2;
    return {
      tone: failed ? 'bad' : 'accent',
      word: failed ? 'Not issued' : 'Being issued',
      why: text(job.msg),
      ...(retriesAt ? { retriesAt } : {}),
      ...(failed ? { failed: step } : {}),
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
