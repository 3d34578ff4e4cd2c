import { queryOptions, useQuery } from '@tanstack/react-query';

const caHashQuery = queryOptions({
  queryKey: ['ca-hash'],
  queryFn: async ({ signal }) => {
    const answer = await fetch('/console/ca.pem', { signal });
    if (!answer.ok) throw new Error(`ca.pem: ${answer.status}`);
    const hash = await crypto.subtle.digest(
      'SHA-256',
      await answer.arrayBuffer(),
    );
    return [...new Uint8Array(hash)]
      .map((byte) => byte.toString(16).padStart(2, '0'))
      .join('');
  },
  staleTime: Infinity,
});

/** The SHA-256 of `ca.pem` as this browser gets it, if the console is reached by TLS: without, nothing protects either. */
export function useCaHash(): string | undefined {
  const { data } = useQuery({
    ...caHashQuery,
    enabled: location.protocol === 'https:',
  });
  return data;
}
