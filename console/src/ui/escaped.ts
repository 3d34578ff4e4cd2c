/** Control characters, separators of lines and paragraphs, annotations, and characters that are invisible or change the direction of text. */
const DECEPTIVE =
  /[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}\p{Default_Ignorable_Code_Point}\uFFF9-\uFFFB]/gu;

/** A text with such characters written as `\u{202e}`. Line breaks and tabs stay where `lines` is set. */
export function escaped(text: string, lines = false): string {
  return text.replace(DECEPTIVE, (it) =>
    lines && (it === '\n' || it === '\t')
      ? it
      : `\\u{${it.codePointAt(0)?.toString(16) ?? ''}}`,
  );
}
