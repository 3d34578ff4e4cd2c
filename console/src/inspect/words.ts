import type { Summary } from './exchange';

/**
 * A search of what an agent keeps, by the words of searches of events: `502 /checkout >500ms`. The agent knows less of a
 * request than the server, so it takes fewer facets, and other words are texts.
 */

interface Term {
  facet: string;
  isNegated: boolean;
  /** Alternatives of one facet widen the search, comparisons and texts narrow it. */
  isAlternative: boolean;
  test: (it: Summary) => boolean;
}

const METHODS = /^(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|CONNECT|TRACE)$/;
const UNITS: Record<string, number> = { ms: 1, s: 1000, m: 60_000 };

const compared = (sign: string, one: number, other: number): boolean =>
  sign === '>'
    ? one > other
    : sign === '>='
      ? one >= other
      : sign === '<'
        ? one < other
        : one <= other;

type Test = Pick<Term, 'isAlternative' | 'test'> | undefined;

function status(word: string): Test {
  const whole = /^([1-5])xx$/i.exec(word);
  if (whole)
    return {
      isAlternative: true,
      test: (it) => Math.floor((it.status ?? 0) / 100) === Number(whole[1]),
    };
  const range = /^([1-5]\d\d)(?:-([1-5]\d\d))?$/.exec(word);
  if (range) {
    const [from, to] = [Number(range[1]), Number(range[2] ?? range[1])];
    return {
      isAlternative: true,
      test: ({ status: code }) =>
        code !== null &&
        code >= Math.min(from, to) &&
        code <= Math.max(from, to),
    };
  }
  const than = /^([<>]=?)([1-5]\d\d)$/.exec(word);
  return than
    ? {
        isAlternative: false,
        test: ({ status: code }) =>
          code !== null && compared(than[1] ?? '', code, Number(than[2])),
      }
    : undefined;
}

function duration(word: string): Test {
  const than = /^([<>]=?)?(\d+(?:\.\d+)?)(ms|s|m)$/i.exec(word);
  if (!than) return undefined;
  const ms = Number(than[2]) * (UNITS[(than[3] ?? '').toLowerCase()] ?? 1);
  return {
    isAlternative: false,
    test: (it) => compared(than[1] ?? '>=', it.took_ms, ms),
  };
}

const alternative = (test: Term['test']): Test => ({
  isAlternative: true,
  test,
});

/** Beginning of the path; `*` stands for any text. Clients encode bytes in either case. */
function path(word: string): Test {
  const sent = (text: string) =>
    text
      .replace(/[^\x00-\x7f]+/g, encodeURIComponent)
      .replace(/%[0-9a-f]{2}/gi, (byte) => byte.toUpperCase());
  const pattern = new RegExp(
    `^${sent(word)
      .split('*')
      .map((part) => part.replace(/[.+?^${}()|[\]\\]/g, '\\$&'))
      .join('.*')}`,
  );
  return alternative((it) => pattern.test(sent(it.path)));
}

const hasFailed = (it: Summary) =>
  it.status === null || it.status >= 500 || it.error !== null;

const part = (text: string, value: string) =>
  text.toLowerCase().includes(value.toLowerCase());

const FACETS: Record<string, (value: string) => Test> = {
  status: (value) => status(value.replace(/^=/, '')),
  method: (value) =>
    alternative((it) => it.method.toLowerCase() === value.toLowerCase()),
  path,
  url: (value) => alternative((it) => `${it.url}${it.path}`.startsWith(value)),
  host: (value) => alternative((it) => part(it.url, value.replace(/^\*/, ''))),
  duration,
  ip: (value) => alternative((it) => it.client.startsWith(value)),
  upstream: (value) => alternative((it) => part(it.tunnel, value)),
};

const text = (value: string): Test => ({
  isAlternative: false,
  test: (it) =>
    part(
      `${it.method} ${it.url}${it.path} ${it.status ?? 'canceled'} ${it.tunnel} ${it.client} ${it.error ?? ''} ${it.response_type ?? ''}`,
      value,
    ),
});

function term(word: string): Term | undefined {
  const isNegated = word.length > 1 && word.startsWith('-');
  const bare = isNegated ? word.slice(1) : word;
  const of = (facet: string, found: Test): Term | undefined =>
    found && { facet, isNegated, ...found };
  const quoted = /^"(.*?)"?$/.exec(bare);
  if (quoted) return of('text', text(quoted[1] ?? ''));
  const [, name = '', value = ''] = /^([a-z_]+):(.+)$/i.exec(bare) ?? [];
  const facet = FACETS[name.toLowerCase()];
  const named = facet?.(value.replace(/^"(.*?)"?$/, '$1'));
  if (named) return of(name.toLowerCase(), named);
  if (METHODS.test(bare)) return of('method', FACETS.method?.(bare));
  if (bare.startsWith('/')) return of('path', path(bare));
  if (/^(errors?|failed)$/.test(bare))
    return of('error', alternative(hasFailed));
  return (
    of('status', status(bare)) ??
    of('duration', duration(bare)) ??
    of('text', text(bare))
  );
}

/** The words of a search: text in quotes is one. */
const WORDS = /-?(?:[a-z_]+:)?"[^"]*"?|\S+/gi;

/** A test of requests by the words of a search. */
export function searched(words: string): (it: Summary) => boolean {
  // `> 500ms` is one comparison.
  const joined = words.replace(/([<>]=?)\s+(?=\d)/g, '$1');
  const terms = (joined.match(WORDS) ?? []).flatMap((word) => term(word) ?? []);
  const each = terms.filter(
    ({ isNegated, isAlternative }) => isNegated || !isAlternative,
  );
  const facets = new Map<string, Term[]>();
  for (const one of terms)
    if (!each.includes(one))
      facets.set(one.facet, [...(facets.get(one.facet) ?? []), one]);
  return (it) =>
    each.every(({ test, isNegated }) => test(it) !== isNegated) &&
    [...facets.values()].every((all) => all.some(({ test }) => test(it)));
}
