//! Positions in a text, as people and editors count them.

/// What columns count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Characters, as in messages of commands.
    Characters,
    /// Units of UTF-16, as in editors.
    Utf16,
}

/// A line and a column, both from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// From 0.
    pub line: usize,
    /// From 0.
    pub column: usize,
}

/// Where the lines of a text begin.
#[derive(Debug)]
pub struct LineIndex<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> LineIndex<'t> {
    /// Finds the lines. `\n`, `\r\n` and `\r` end one.
    pub fn new(text: &'t str) -> Self {
        let bytes = text.as_bytes();
        let ends = bytes.iter().enumerate().filter(|(at, byte)| match byte {
            b'\n' => true,
            b'\r' => bytes.get(at + 1) != Some(&b'\n'),
            _ => false,
        });
        let starts = ends.map(|(at, _)| at + 1);
        Self {
            text,
            starts: std::iter::once(0).chain(starts).collect(),
        }
    }

    /// The position of a byte. One inside of a character is that of the character.
    pub fn position(&self, byte: usize, unit: Unit) -> Position {
        let byte = floor(self.text, byte);
        let line = self.starts.partition_point(|start| *start <= byte) - 1;
        let start = self.starts.get(line).copied().unwrap_or_default();
        let before = self.text.get(start..byte).unwrap_or_default();
        let column = match unit {
            Unit::Characters => before.chars().count(),
            Unit::Utf16 => before.encode_utf16().count(),
        };
        Position { line, column }
    }

    /// The byte of a position. A column behind the end of its line is that end; a line behind the text is its end.
    pub fn byte(&self, position: Position, unit: Unit) -> usize {
        let Some(start) = self.starts.get(position.line).copied() else {
            return self.text.len();
        };
        let end = self.starts.get(position.line + 1).copied();
        let line = self.text.get(start..end.unwrap_or(self.text.len()));
        let line = line.unwrap_or_default().trim_end_matches(['\n', '\r']);
        let mut column = 0;
        for (at, character) in line.char_indices() {
            let width = match unit {
                Unit::Characters => 1,
                Unit::Utf16 => character.len_utf16(),
            };
            if column + width > position.column {
                return start + at;
            }
            column += width;
        }
        start + line.len()
    }

    /// The byte behind a line, without its end.
    pub(crate) fn line_end(&self, byte: usize) -> usize {
        let Position { line, .. } = self.position(byte, Unit::Characters);
        let column = usize::MAX;
        self.byte(Position { line, column }, Unit::Characters)
    }
}

/// The beginning of the character at a byte.
pub(crate) fn floor(text: &str, byte: usize) -> usize {
    let mut byte = byte.min(text.len());
    while !text.is_char_boundary(byte) {
        byte -= 1;
    }
    byte
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_and_bytes_are_inverse() {
        for text in ["", "a\nb", "é😀x\r\nü\r😀", "\n\n", "a\u{0}b\tc"] {
            let index = LineIndex::new(text);
            for unit in [Unit::Characters, Unit::Utf16] {
                for (byte, character) in text.char_indices() {
                    if !['\n', '\r'].contains(&character) {
                        let position = index.position(byte, unit);
                        assert_eq!(index.byte(position, unit), byte, "{text:?} {position:?}");
                    }
                }
                let end = index.position(text.len() + 9, unit);
                assert_eq!(index.byte(end, unit), text.len());
            }
        }
        let index = LineIndex::new("é😀x\r\nü");
        let at = |line, column| Position { line, column };
        assert_eq!(index.position(6, Unit::Utf16), at(0, 3));
        assert_eq!(index.position(6, Unit::Characters), at(0, 2));
        // In the middle of a surrogate pair, behind the line, and behind the text.
        assert_eq!(index.byte(at(0, 2), Unit::Utf16), 2);
        assert_eq!(index.byte(at(0, 99), Unit::Utf16), 7);
        assert_eq!(index.byte(at(9, 0), Unit::Utf16), 11);
    }
}
