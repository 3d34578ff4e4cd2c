import { ApiError } from '@/api/error';

/** A refusal that belongs to one field of a form. `field` is a path with dots. */
export interface FieldError {
  field: string;
  message: string;
}

/**
 * The field that a refusal is about. Messages name it in backticks or as a word of its name ("The scheme of the url…"):
 * the error itself has no member for it.
 */
export function fieldError(
  error: Error | null,
  fields: string[],
): FieldError | undefined {
  if (!(error instanceof ApiError) || error.status >= 500) return undefined;
  const { message } = error;
  const quoted = [...message.matchAll(/`([\w.[\]]+)`/g)].map(
    (match) => match[1] ?? '',
  );
  const named = quoted.find((name) =>
    fields.includes(name.split(/[.[]/)[0] ?? ''),
  );
  if (named) return { field: named, message };
  const inside = /^The (\w+) target\b/.exec(message)?.[1];
  if (inside && fields.includes('target'))
    return {
      field: ['target', inside, quoted[0]].filter(Boolean).join('.'),
      message,
    };
  const words = message.toLowerCase();
  const word = fields
    .filter((field) =>
      new RegExp(`\\b${field.replaceAll('_', '[ _]')}\\b`).test(words),
    )
    .toSorted((a, b) => b.length - a.length)[0];
  return word ? { field: word, message } : undefined;
}

/** The message for the field at this path. */
export function messageAt(
  errors: readonly FieldError[],
  path: (string | number)[],
): string | undefined {
  const at = path.join('.');
  // A message names a field of a target without the objects between.
  const isBelow = (field: string) => {
    const [top, kind, name] = field.split('.');
    return (
      name !== undefined &&
      path.length > 3 &&
      path[0] === top &&
      path[1] === kind &&
      path.at(-1) === name
    );
  };
  return errors.find(({ field }) => field === at || isBelow(field))?.message;
}
