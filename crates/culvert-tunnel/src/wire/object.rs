//! Finds the end of a JSON object in a stream without length prefixes.

/// The state of the scanned bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scanned {
    /// An incomplete object.
    Part,
    /// A complete object of this many bytes. Further bytes do not belong to it.
    Whole(usize),
    /// Not an object.
    Nonsense,
}

/// Finds the end of an object in pieces, each of which is scanned once.
///
/// Counts brackets outside of strings, and leaves validation to the parser.
#[derive(Clone, Copy, Debug, Default)]
pub struct Object {
    /// Bytes of earlier pieces.
    scanned: usize,
    depth: u32,
    in_text: bool,
    escaped: bool,
}

/// Maximum nesting. Messages of agents are not nested deeper.
const DEPTH_MAX: u32 = 32;

impl Object {
    /// Scans the next piece. A length in the result counts from the beginning of the first one.
    pub fn scan(&mut self, piece: &[u8]) -> Scanned {
        let before = self.scanned;
        self.scanned += piece.len();
        for (at, byte) in (before..).zip(piece) {
            if self.in_text {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_text = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'{' | b'[' if self.depth < DEPTH_MAX && (self.depth > 0 || *byte == b'{') => {
                    self.depth += 1;
                }
                b'}' | b']' if self.depth == 1 => return Scanned::Whole(at + 1),
                b'}' | b']' if self.depth > 1 => self.depth -= 1,
                b'"' if self.depth > 0 => self.in_text = true,
                b' ' | b'\t' | b'\r' | b'\n' => {}
                b'{' | b'[' | b'}' | b']' => return Scanned::Nonsense,
                _ if self.depth == 0 => return Scanned::Nonsense,
                _ => {}
            }
        }
        Scanned::Part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str) -> Scanned {
        let mut whole = Object::default();
        let verdict = whole.scan(text.as_bytes());
        let mut dripped = Object::default();
        let mut of_drips = Scanned::Part;
        for end in 1..=text.len() {
            of_drips = dripped.scan(&text.as_bytes()[end - 1..end]);
            if of_drips != Scanned::Part {
                break;
            }
        }
        assert_eq!(verdict, of_drips, "the verdict depends on the cut: {text}");
        verdict
    }

    #[test]
    fn an_object_ends_with_its_last_bracket() {
        for object in [
            "{}",
            r#"{"a":"}"}"#,
            r#"{"a":"\"}","b":[{"c":"\\"}]}"#,
            " \n{\"a\":{\"b\":[1,2,[3]]}}",
        ] {
            assert_eq!(scan(object), Scanned::Whole(object.len()), "{object}");
            let followed = format!("{object}\n{{");
            assert_eq!(scan(&followed), Scanned::Whole(object.len()));
            for end in 0..object.len() {
                assert_eq!(scan(&object[..end]), Scanned::Part, "{}", &object[..end]);
            }
        }
    }

    #[test]
    fn what_is_no_object_is_said_at_once() {
        for text in ["[]", "x", "\"{}\"", "}", "1", " null"] {
            assert_eq!(scan(text), Scanned::Nonsense, "{text}");
        }
        assert_eq!(scan(&"{\"a\":".repeat(40)), Scanned::Nonsense);
    }
}
