import fields from './secret-fields.json';

/** Where a secret is in a policy's text: from, to. */
export type Range = [from: number, to: number];

/** What stands in place of a secret until it is asked for. */
export const MASK = '••••••••';

const KEY = new RegExp(
  `(^|[\\s{,\\[])(["']?)(${fields.join('|')})\\2[ \\t]*:`,
  'gm',
);

/** The end of a quoted text, behind its quote; the end of everything if it has none. */
function endOfQuoted(text: string, start: number): number {
  const quote = text[start];
  for (let at = start + 1; at < text.length; at += 1) {
    if (quote === '"' && text[at] === '\\') at += 1;
    else if (text[at] === quote) return at + 1;
  }
  return text.length;
}

/** The end of a list or an object in brackets, behind its bracket. */
function endOfFlow(text: string, start: number): number {
  let open = 0;
  for (let at = start; at < text.length; at += 1) {
    const one = text[at] ?? '';
    if (one === '"' || one === "'") at = endOfQuoted(text, at) - 1;
    else if ('[{'.includes(one)) open += 1;
    else if (']}'.includes(one)) {
      open -= 1;
      if (open === 0) return at + 1;
    }
  }
  return text.length;
}

const lineEnd = (text: string, at: number) => {
  const end = text.indexOf('\n', at);
  return end < 0 ? text.length : end;
};

/** The end of a value that goes on in deeper lines than that of its key. */
function endOfBlock(text: string, key: number, start: number): number {
  const line = text.lastIndexOf('\n', key - 1) + 1;
  // The key of a list's item stands behind its dash.
  const indent = /^[ \t-]*/.exec(text.slice(line, key))?.[0].length ?? 0;
  let end = lineEnd(text, start);
  while (end < text.length) {
    const next = lineEnd(text, end + 1);
    const content = text.slice(end + 1, next);
    const depth = content.length - content.trimStart().length;
    const isItem = depth === indent && content.trimStart().startsWith('-');
    if (content.trim() && depth <= indent && !isItem) break;
    end = next;
  }
  return end;
}

/**
 * The secrets of a policy: the values of all fields that the server encrypts. A text that cannot be read hides more, not
 * less, and so does an expression beside a secret.
 */
export function secretsIn(text: string): Range[] {
  const found: Range[] = [];
  for (const match of text.matchAll(KEY)) {
    const key = match.index + (match[1]?.length ?? 0);
    if (found.some(([, end]) => key < end)) continue;
    let from = match.index + match[0].length;
    while (text[from] === ' ' || text[from] === '\t') from += 1;
    const first = text[from] ?? '';
    const line = text.slice(text.lastIndexOf('\n', key - 1) + 1, key);
    const isInFlow = /[{[]/.test(line.replace(/"[^"]*"|'[^']*'/g, ''));
    let to: number;
    if (first === '"' || first === "'") to = endOfQuoted(text, from);
    else if (first === '[' || first === '{') to = endOfFlow(text, from);
    else if (isInFlow && first !== '\n' && first !== '\r')
      to = from + (/^[^,}\]\n]*/.exec(text.slice(from))?.[0].length ?? 0);
    else to = endOfBlock(text, key, from);
    const value = text.slice(from, to);
    from += value.length - value.trimStart().length;
    to = from + value.trim().length;
    // What the server has redacted already, and a text that is only an expression, is no secret.
    if (
      to > from &&
      !/^["']?(\[redacted\]|\$\{[^}]*\})["']?$/.test(value.trim())
    )
      found.push([from, to]);
  }
  return found;
}

/** A policy without its secrets, to be shown. */
export function masked(text: string): string {
  let shown = '';
  let at = 0;
  for (const [from, to] of secretsIn(text)) {
    shown += text.slice(at, from) + MASK;
    at = to;
  }
  return shown + text.slice(at);
}
