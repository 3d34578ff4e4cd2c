import { useQueryClient } from '@tanstack/react-query';
import { useEffect } from 'react';
import { useModel } from '@/api/document';
import { type JsonObject, text } from '@/api/json';
import { ActionButton } from '@/resources/actions';
import { Breakable } from '@/ui/breakable';
import { CopyBlock } from '@/ui/copy';
import { Glance } from '@/ui/glance';
import { Prose, Section, Tag } from '@/ui/page';
import { Time } from '@/ui/time';
import ui from '@/ui/ui.module.css';
import { Check } from './check';
import { domainState } from './status';

/** The DNS records that a domain needs, how its certificate is, and the button that tries again. */
export default function DomainExtra({ object }: { object: JsonObject }) {
  const client = useQueryClient();
  const resource = useModel().resources.get('reserved_domains');
  const retry = resource?.below.find(
    (one) => one.command === 'retry-certificate-management',
  );
  const stop = resource?.below.find(
    (one) => one.command === 'delete-certificate-management-policy',
  );
  const check = resource?.below.find(
    (one) => one.command === 'check-certificate',
  );
  const { tone, word, why, retriesAt, renewsAt } = domainState(object);
  const busy =
    word === 'Being issued' || word === 'Not issued' || word === 'Waiting';
  useEffect(() => {
    if (!busy) return undefined;
    const timer = setInterval(
      () =>
        void client.invalidateQueries({
          queryKey: ['reserved_domains', 'object', object.id],
        }),
      4000,
    );
    return () => clearInterval(timer);
  }, [busy, client, object.id]);
  const domain = text(object.domain);
  const cname = text(object.cname_target);
  const challenge = text(object.acme_challenge_cname_target);
  const records = [
    cname ? `${domain}. CNAME ${cname}.` : '',
    challenge
      ? `_acme-challenge.${domain.replace('*.', '')}. CNAME ${challenge}.`
      : '',
  ].filter(Boolean);
  const buttons =
    resource && object.certificate_management_policy ? (
      <>
        {stop ? (
          <ActionButton
            resource={resource}
            operation={stop}
            id={String(object.id)}
            label="Stop managing"
            danger
          />
        ) : null}
        {retry ? (
          <ActionButton
            resource={resource}
            operation={retry}
            id={String(object.id)}
            label="Try again now"
          />
        ) : null}
      </>
    ) : null;
  return (
    <>
      <Glance
        items={[
          ['Domain', <Breakable key="name" text={domain} />],
          [
            'Certificate',
            <Tag key="state" tone={tone}>
              {word}
            </Tag>,
          ],
          [
            'DNS',
            cname ? (
              <>
                CNAME to <Breakable text={cname} />
              </>
            ) : (
              'Any record that leads here'
            ),
          ],
        ]}
      />
      <div className={ui.columns}>
        <Section title="Certificate" actions={buttons}>
          <p role="status">
            <Tag tone={tone}>{word}</Tag> {why ? <Prose text={why} /> : null}
          </p>
          {retriesAt ? (
            <p className={ui.dim}>
              The next attempt is at <Time value={retriesAt} />.
            </p>
          ) : null}
          {renewsAt ? (
            <p className={ui.dim}>
              It is renewed at <Time value={renewsAt} />.
            </p>
          ) : null}
          {word === "The platform's" ? (
            <p className={ui.dim}>
              The certificate of the installation is presented for this name.
            </p>
          ) : null}
        </Section>
        {records.length > 0 ? (
          <Section title="DNS records">
            <p className={ui.dim}>Set these at the provider of the domain:</p>
            <div className={ui.stack}>
              {records.map((record) => (
                <CopyBlock key={record} value={record} label="DNS record" />
              ))}
            </div>
          </Section>
        ) : null}
      </div>
      {check ? (
        <Check key={text(object.id)} operation={check} id={text(object.id)} />
      ) : null}
    </>
  );
}
