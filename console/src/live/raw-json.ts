/**
 * The texts of JSON values as they stand in a document. A hash covers the exact bytes of an event, and numbers such as
 * nanoseconds do not fit into a number of JavaScript.
 */
class Scanner {
  readonly #text: string;
  at = 0;

  constructor(text: string) {
    this.#text = text;
  }

  space(): void {
    while (/\s/.test(this.#text[this.at] ?? '')) this.at += 1;
  }

  is(symbol: string): boolean {
    this.space();
    return this.#text[this.at] === symbol;
  }

  take(symbol: string): boolean {
    if (!this.is(symbol)) return false;
    this.at += 1;
    return true;
  }

  /** Passes over a string. */
  string(): string {
    this.space();
    const start = this.at;
    this.at += 1;
    while (this.at < this.#text.length && this.#text[this.at] !== '"')
      this.at += this.#text[this.at] === '\\' ? 2 : 1;
    this.at += 1;
    return this.#text.slice(start, this.at);
  }

  /** Passes over any value. */
  value(): string {
    this.space();
    const start = this.at;
    if (this.is('"')) return this.string();
    let depth = 0;
    while (this.at < this.#text.length) {
      const symbol = this.#text[this.at] ?? '';
      if (symbol === '"') {
        this.string();
        continue;
      }
      if (symbol === '{' || symbol === '[') depth += 1;
      else if (symbol === '}' || symbol === ']') {
        if (depth === 0) break;
        depth -= 1;
        if (depth === 0) {
          this.at += 1;
          break;
        }
      } else if (depth === 0 && (symbol === ',' || /\s/.test(symbol))) break;
      this.at += 1;
    }
    return this.#text.slice(start, this.at);
  }
}

/** The members of an object, each as its text. The text must be JSON that was read before. */
export function membersOf(text: string): Map<string, string> {
  const scanner = new Scanner(text);
  const members = new Map<string, string>();
  if (!scanner.take('{')) return members;
  while (!scanner.take('}') && scanner.at < text.length) {
    const name = JSON.parse(scanner.string()) as string;
    scanner.take(':');
    members.set(name, scanner.value());
    scanner.take(',');
  }
  return members;
}

/** The elements of an array, each as its text. */
export function elementsOf(text: string): string[] {
  const scanner = new Scanner(text);
  const elements: string[] = [];
  if (!scanner.take('[')) return elements;
  while (!scanner.take(']') && scanner.at < text.length) {
    elements.push(scanner.value());
    scanner.take(',');
  }
  return elements;
}
