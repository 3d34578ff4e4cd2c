//! Writes JSON values as bytes, eight bytes at a time where nothing must be escaped.
//!
//! serde costs several times as much, and this code runs for every request.

use culvert_base::Timestamp;

/// The low bit of each byte of a word.
pub(crate) const ONES: u64 = 0x0101_0101_0101_0101;
/// The high bit of each byte of a word. It is set in all bytes that are not ASCII; the functions
/// below set it to mark bytes.
pub(crate) const HIGH: u64 = 0x8080_8080_8080_8080;

/// Writes UTF-8 as a JSON string with its quotes. Bytes that are not UTF-8 are copied unchanged.
pub(crate) fn push_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    push_inner(out, text);
    out.push(b'"');
}

/// Writes the contents of a JSON string, without quotes.
pub(crate) fn push_inner(out: &mut Vec<u8>, text: &[u8]) {
    if is_plain(text) {
        out.extend_from_slice(text);
    } else {
        push_escaped(out, text);
    }
}

/// Whether no byte must be escaped in a JSON string.
pub(crate) fn is_plain(text: &[u8]) -> bool {
    let mut special = 0;
    // Without a branch, so that the compiler compares many bytes with one instruction.
    for byte in text {
        special |= u8::from(*byte < 0x20) | u8::from(*byte == b'"') | u8::from(*byte == b'\\');
    }
    special == 0
}

/// Appends bytes, converted by `map` eight at a time. The last word is padded with underscores.
pub(crate) fn push_words(out: &mut Vec<u8>, bytes: &[u8], mut map: impl FnMut(u64) -> u64) {
    let end = out.len() + bytes.len();
    out.reserve(bytes.len() + 8);
    for word in bytes.as_chunks::<8>().0 {
        out.extend_from_slice(&map(u64::from_le_bytes(*word)).to_le_bytes());
    }
    out.extend_from_slice(&map(tail(bytes)).to_le_bytes());
    out.truncate(end);
}

/// The zero to seven bytes after the last whole word, in the low end of a word of underscores.
fn tail(bytes: &[u8]) -> u64 {
    let left = bytes.len() % 8;
    let word = match (bytes, bytes.last_chunk::<8>()) {
        (_, Some(last)) => u64::from_le_bytes(*last)
            .checked_shr(64 - 8 * left as u32)
            .unwrap_or(0),
        ([a, b, c, d, rest @ ..], None) => {
            let low = u64::from(u32::from_le_bytes([*a, *b, *c, *d]));
            rest.iter()
                .rev()
                .fold(0, |high, byte| high << 8 | u64::from(*byte))
                << 32
                | low
        }
        (few, None) => few
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte)),
    };
    word | (ONES * 0x5F) << (8 * left)
}

/// Not zero if a byte of the word must be escaped in a JSON string: a quote, a backslash or a
/// control character. The result does not show which byte.
pub(crate) fn specials(word: u64) -> u64 {
    let controls = word.wrapping_sub(ONES * 0x20) & !word;
    let quote = word ^ (ONES * 0x22);
    let backslash = word ^ (ONES * 0x5C);
    let zero_in = |x: u64| x.wrapping_sub(ONES) & !x;
    (controls | zero_in(quote) | zero_in(backslash)) & HIGH
}

fn push_escaped(out: &mut Vec<u8>, text: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut copied = 0;
    for (index, &byte) in text.iter().enumerate() {
        let short = match byte {
            b'"' | b'\\' => byte,
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            0x08 => b'b',
            0x0C => b'f',
            0..0x20 => 0,
            _ => continue,
        };
        out.extend_from_slice(&text[copied..index]);
        copied = index + 1;
        if short == 0 {
            out.extend_from_slice(b"\\u00");
            out.push(HEX[usize::from(byte >> 4)]);
            out.push(HEX[usize::from(byte & 15)]);
        } else {
            out.extend_from_slice(&[b'\\', short]);
        }
    }
    out.extend_from_slice(&text[copied..]);
}

/// Writes a number in decimal.
pub(crate) fn push_int(out: &mut Vec<u8>, value: i64) {
    if value < 0 {
        out.push(b'-');
    }
    let mut left = value.unsigned_abs();
    let mut digits = [b'0'; 20];
    let mut at = digits.len();
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
        at -= 1;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Writes a time as RFC 3339 with `digits` fractional digits, without quotes.
pub(crate) fn push_time(out: &mut Vec<u8>, at: Timestamp, digits: usize) {
    let (text, length) = at.rfc3339(digits);
    out.extend_from_slice(&text[..length]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(input: &str) -> String {
        let mut out = Vec::new();
        push_text(&mut out, input.as_bytes());
        String::from_utf8(out).unwrap()
    }

    fn is_plain_text(input: &str) -> bool {
        is_plain(input.as_bytes())
    }

    #[test]
    fn every_ascii_character_at_every_place_of_a_word() {
        for character in 0..0x80u8 {
            for before in 0..17 {
                let input = format!("{}{}tail", "é".repeat(before), char::from(character));
                let decoded: String = serde_json::from_str(&text(&input)).unwrap();
                assert_eq!(decoded, input);
                let must_escape = matches!(character, 0..0x20 | b'"' | b'\\');
                assert_eq!(is_plain_text(&input), !must_escape);
                let short = "x".repeat(before) + &char::from(character).to_string();
                assert_eq!(text(&short), serde_json::to_string(&short).unwrap());
            }
        }
    }

    #[test]
    fn numbers_at_their_ends() {
        for value in [0, 9, 10, -1, i64::MAX, i64::MIN, 1 << 53] {
            let mut out = Vec::new();
            push_int(&mut out, value);
            assert_eq!(String::from_utf8(out).unwrap(), value.to_string());
        }
    }

    proptest! {
        #[test]
        fn plain_text_is_written_as_it_is(input in "[ -~é\\x00-\\x1f]{0,70}") {
            let is_plain = text(&input) == format!("\"{input}\"");
            prop_assert_eq!(is_plain_text(&input), is_plain);
            let plain = input.replace(['"', '\\'], "x").replace(|c: char| c.is_control(), "y");
            prop_assert!(is_plain_text(&plain));
        }

        #[test]
        fn as_serde_writes_it(input in any::<String>(), number: i64) {
            prop_assert_eq!(text(&input), serde_json::to_string(&input).unwrap());
            let mut out = Vec::new();
            push_int(&mut out, number);
            prop_assert_eq!(String::from_utf8(out).unwrap(), number.to_string());
        }
    }
}
