import {
  type Document,
  isCollection,
  isMap,
  isPair,
  isScalar,
  isSeq,
  type Node,
  parseDocument,
  stringify,
} from 'yaml';
import { type Json, isObject } from '@/api/json';

export type Path = (string | number)[];
type Container = { [key: string]: Json } | Json[];

/** A text that these functions cannot read or change; its message is a whole sentence. */
export class NotUnderstood extends Error {
  override name = 'NotUnderstood';
}

function parse(text: string): Document {
  const document = parseDocument(text, { keepSourceTokens: true });
  const [problem] = [...document.errors, ...document.warnings];
  if (problem)
    throw new NotUnderstood(
      `The policy is not readable: ${problem.message.split('\n')[0]?.replace(/:$/, '') ?? ''}.`,
    );
  return document;
}

/** The values of a YAML or JSON text. Aliases are copies. */
export function valueOf(text: string): Json {
  return JSON.parse(JSON.stringify(parse(text).toJS() ?? null)) as Json;
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** Equal for equal values in whatever order of keys. `{}` and nothing mean the same at the top of a policy. */
function comparable(value: Json): string {
  const sorted = (_: string, one: Json) =>
    isObject(one)
      ? Object.fromEntries(
          Object.entries(one).toSorted(([a], [b]) => (a < b ? -1 : 1)),
        )
      : one;
  return JSON.stringify(value ?? {}, sorted);
}

/** The first of the texts that has exactly the wanted values; so whatever is in the text, no change is more than meant. */
function first(
  text: string,
  candidates: string[],
  change: (root: Container) => void,
): string {
  const root = (valueOf(text) ?? {}) as Container;
  change(root);
  const wanted = comparable(root);
  const fits = (candidate: string) => {
    try {
      return (
        comparable(valueOf(candidate)) === wanted &&
        (!isJson(text) || isJson(candidate))
      );
    } catch {
      return false;
    }
  };
  const found = candidates.find(fits);
  if (found === undefined)
    throw new NotUnderstood(
      'The policy is written in a way that this form cannot change.',
    );
  return found;
}

function at(root: Container, path: Path): Container {
  return path.reduce<Json>(
    (value, key) => (value as { [key: string]: Json })[key] ?? null,
    root,
  ) as Container;
}

interface Place {
  node: Node;
  start: number;
  end: number;
}

function placeOf(node: unknown): Place {
  const range = (node as Node | null)?.range;
  if (!range)
    throw new NotUnderstood(
      'The policy is written in a way that this form cannot change.',
    );
  return { node: node as Node, start: range[0], end: range[1] };
}

const lineStart = (text: string, offset: number) =>
  text.lastIndexOf('\n', offset - 1) + 1;
const column = (text: string, offset: number) =>
  offset - lineStart(text, offset);

/** Where the line after an offset begins; a block text already ends there. */
function nextLine(text: string, offset: number): number {
  if (offset > 0 && text[offset - 1] === '\n') return offset;
  const end = text.indexOf('\n', offset);
  return end < 0 ? text.length : end + 1;
}

function splice(
  text: string,
  start: number,
  end: number,
  inserted: string,
): string {
  return text.slice(0, start) + inserted + text.slice(end);
}

/** Inserts whole lines at the beginning of a line. */
function insertLines(text: string, offset: number, lines: string): string {
  const eol = text.includes('\r\n') ? '\r\n' : '\n';
  const before = offset > 0 && text[offset - 1] !== '\n' ? eol : '';
  return splice(text, offset, offset, before + lines.replaceAll('\n', eol));
}

function asLines(value: Json, indent: number): string {
  return stringify(value, { lineWidth: 0 }).replaceAll(
    /^(?=.)/gm,
    ' '.repeat(indent),
  );
}

/** Adds an entry, written as `[value]` or `{"key": value}`, to a list or object in brackets. */
function addInBrackets(
  text: string,
  { node, start, end }: Place,
  entry: Container,
): string[] {
  const gap = /^\s*/.exec(text.slice(start + 1))?.[0] ?? '';
  const unit = gap.includes('\n')
    ? (/\n([ \t]+)/.exec(text)?.[1] ?? '  ')
    : undefined;
  const pretty = JSON.stringify(entry, null, unit ?? 1);
  const inner = pretty.slice(1, -1).trim();
  const margin = /[^\n]*$/.exec(gap)?.[0] ?? '';
  const written =
    unit === undefined
      ? inner.replaceAll(/\n\s*/g, ' ').replaceAll(/([[{]) | (?=[\]}])/g, '$1')
      : inner.replaceAll(`\n${unit}`, `\n${margin}`);
  const items = isCollection(node) ? node.items : [];
  if (items.length === 0) return [splice(text, start + 1, start + 1, written)];
  const last = items.at(-1);
  const lastEnd = placeOf(isPair(last) ? (last.value ?? last.key) : last).end;
  const top = splice(
    text,
    start + 1,
    start + 1,
    `${gap}${written},${gap ? '' : ' '}`,
  );
  const bottom = splice(
    text,
    lastEnd,
    lastEnd,
    unit === undefined ? `, ${written}` : `,${gap}${written}`,
  );
  return text[end - 1] === '}' || text[end - 1] === ']' ? [top, bottom] : [];
}

const isFlow = (node: Node) => isCollection(node) && node.flow === true;

/** Adds a value to a list that is not empty: at its beginning, or at its end. */
export function add(
  text: string,
  path: Path,
  value: Json,
  where: 'first' | 'last',
): string {
  const document = parse(text);
  const place = placeOf(document.getIn(path, true));
  if (!isSeq(place.node))
    throw new NotUnderstood(
      'The policy is written in a way that this form cannot change.',
    );
  let candidates: string[];
  if (isFlow(place.node)) {
    candidates = addInBrackets(text, place, [value]);
    if (where === 'last') candidates.reverse();
  } else {
    const lines = asLines([value], column(text, place.start));
    const parent = document.getIn(path.slice(0, -1), true);
    const key = isMap(parent)
      ? parent.items.find(
          (pair) => isScalar(pair.key) && pair.key.value === path.at(-1),
        )?.key
      : undefined;
    candidates =
      where === 'last'
        ? [nextLine(text, place.end)].map((offset) =>
            insertLines(text, offset, lines),
          )
        : // Below the key, so that a comment above the first value stays with it.
          [
            ...(key ? [nextLine(text, placeOf(key).end)] : []),
            lineStart(text, place.start),
          ].map((offset) => insertLines(text, offset, lines));
  }
  return first(text, candidates, (root) => {
    const list = at(root, path) as Json[];
    list.splice(where === 'first' ? 0 : list.length, 0, value);
  });
}

/** Adds a key to the object at a path. */
export function put(
  text: string,
  path: Path,
  key: string,
  value: Json,
): string {
  const document = parse(text);
  const node =
    path.length === 0 ? document.contents : document.getIn(path, true);
  const change = (root: Container) => {
    (at(root, path) as { [key: string]: Json })[key] = value;
  };
  if (
    path.length === 0 &&
    (node === null || (isScalar(node) && node.value === null))
  ) {
    return first(
      text,
      [insertLines(text, text.length, asLines({ [key]: value }, 0))],
      change,
    );
  }
  const place = placeOf(node);
  if (!isMap(place.node))
    throw new NotUnderstood(
      'The policy is written in a way that this form cannot change.',
    );
  if (isFlow(place.node))
    return first(text, addInBrackets(text, place, { [key]: value }), change);
  const lines = asLines({ [key]: value }, column(text, place.start));
  return first(
    text,
    [nextLine(text, place.end), lineStart(text, place.start)].map((offset) =>
      insertLines(text, offset, lines),
    ),
    change,
  );
}

/** Removes the value at a path, with its key. */
export function remove(text: string, path: Path): string {
  const document = parse(text);
  const key = path.at(-1) ?? '';
  const parent =
    path.length === 1
      ? document.contents
      : (document.getIn(path.slice(0, -1), true) as Node);
  const candidates: string[] = [];
  if (isMap(parent) || isSeq(parent)) {
    const items: unknown[] = parent.items;
    const index = isMap(parent)
      ? parent.items.findIndex(
          (pair) => isScalar(pair.key) && pair.key.value === key,
        )
      : Number(key);
    const bounds = (item: unknown) =>
      isPair(item)
        ? {
            start: placeOf(item.key).start,
            end: placeOf(item.value ?? item.key).end,
          }
        : placeOf(item);
    const { start, end } = bounds(items[index]);
    if (isFlow(parent)) {
      if (index + 1 < items.length) {
        // A comment behind the comma stays.
        const comma = /^\s*,[ \t]*(?=#)/.exec(text.slice(end));
        candidates.push(
          splice(
            text,
            start,
            comma ? end + comma[0].length : bounds(items[index + 1]).start,
            '',
          ),
        );
      }
      if (index > 0)
        candidates.push(splice(text, bounds(items[index - 1]).end, end, ''));
      candidates.push(splice(text, start, end, ''));
    } else {
      // The item of a list begins with its dash.
      const from = isSeq(parent) ? text.lastIndexOf('-', start - 1) : start;
      const line = lineStart(text, from);
      if (text.slice(line, from).trim() === '')
        candidates.push(splice(text, line, nextLine(text, end), ''));
    }
  }
  return first(text, candidates, (root) => {
    const container = at(root, path.slice(0, -1));
    if (Array.isArray(container)) container.splice(Number(key), 1);
    else delete container[key];
  });
}
