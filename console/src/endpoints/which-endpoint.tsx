import { TextInput } from '@mantine/core';
import { useQueries } from '@tanstack/react-query';
import { Link } from '@/routing/link';
import { type FormEvent, useState } from 'react';
import { useModel } from '@/api/document';
import { type JsonObject, text } from '@/api/json';
import { listQuery } from '@/resources/queries';
import { Button } from '@/ui/button';
import { Failure } from '@/ui/states';
import ui from '@/ui/ui.module.css';

const DEFAULT_PORTS: Record<string, string> = {
  'http:': '80',
  'https:': '443',
};

/** The URLs of endpoints that can serve an address, the one that wins first: the host itself, then ever wider wildcards. */
function candidates(address: string): string[] {
  const url = new URL(address.includes('://') ? address : `https://${address}`);
  const scheme = url.protocol;
  // Endpoints of the web are reached at any port where the server listens, and have the usual one.
  const end = scheme in DEFAULT_PORTS || !url.port ? '' : `:${url.port}`;
  const labels = url.hostname.split('.');
  const hosts = [
    url.hostname,
    ...labels
      .slice(1)
      .map((_, index) => `*.${labels.slice(index + 1).join('.')}`),
  ];
  return hosts.map((host) => `${scheme}//${host}${end}`);
}

function Answer({ wanted }: { wanted: string[] }) {
  const resource = useModel().resources.get('endpoints');
  if (!resource) throw new Error('The API has no endpoints.');
  // The filter compares the URL as the server writes it; objects show it as it was sent.
  const found = useQueries({
    queries: wanted.map((url) =>
      listQuery(resource, { filter: `obj.url == ${JSON.stringify(url)}` }, 100),
    ),
  });
  const failed = found.find((one) => one.error);
  if (failed?.error)
    return <Failure error={failed.error} retry={() => void failed.refetch()} />;
  if (found.some((one) => !one.data)) return null;
  const matching = found
    .map((one) => one.data?.objects ?? [])
    .filter((objects) => objects.length > 0);
  const [first, ...others] = matching;
  const name = wanted[0] ?? '';
  if (!first)
    return (
      <p role="status" className={ui.once}>
        No endpoint serves <code>{name}</code>: clients get the page for an
        unknown host.
      </p>
    );
  const link = (object: JsonObject) => (
    <Link
      key={text(object.id)}
      to="/$collection/$id"
      params={{ collection: 'endpoints', id: text(object.id) }}
    >
      {text(object.url)}
    </Link>
  );
  const isExact = first === found[0]?.data?.objects;
  return (
    <div role="status" className={ui.once}>
      <p>
        {first.map(link)}{' '}
        {first.length > 1
          ? `share the traffic, as a pool of ${first.length} endpoints.`
          : 'serves it.'}{' '}
        {isExact
          ? 'Its host is exactly this one.'
          : 'No endpoint has exactly this host, and this is the closest wildcard.'}
      </p>
      {others.length > 0 ? (
        <p className={ui.dim}>
          Also matching, but behind it: {others.flat().map(link)}
        </p>
      ) : null}
    </div>
  );
}

/** Says which endpoint serves an address, and why. */
export default function WhichEndpoint() {
  const [address, setAddress] = useState('');
  const [asked, setAsked] = useState<string[]>();
  const [wrong, setWrong] = useState('');
  const submit = (event: FormEvent) => {
    event.preventDefault();
    try {
      setAsked(candidates(address.trim()));
      setWrong('');
    } catch {
      setAsked(undefined);
      setWrong('Write a host, such as app.example.com, or a URL.');
    }
  };
  return (
    <details className={`${ui.commands} ${ui.question}`}>
      <summary>Which endpoint serves a host?</summary>
      <form className={ui.toolbar} onSubmit={submit}>
        <TextInput
          className={ui.grow}
          label="Host or URL"
          placeholder="https://app.example.com"
          value={address}
          error={wrong || undefined}
          onChange={(event) => setAddress(event.currentTarget.value)}
        />
        <Button type="submit" variant="default" disabled={!address.trim()}>
          Find
        </Button>
      </form>
      {asked ? <Answer key={asked[0]} wanted={asked} /> : null}
    </details>
  );
}
