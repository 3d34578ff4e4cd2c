//! Characters that names must not have, because a person would read another text than the actual one; and how texts
//! that have them are shown.

use std::borrow::Cow;
use std::fmt::Write;

/// Ranges of `Default_Ignorable_Code_Point` (Unicode 16, `DerivedCoreProperties.txt`): zero-width characters, marks and
/// overrides of the direction of text, variation selectors, fillers and tags.
const IGNORABLE: [(u32, u32); 17] = [
    (0xAD, 0xAD),
    (0x34F, 0x34F),
    (0x61C, 0x61C),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x200B, 0x200F),
    (0x202A, 0x202E),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
];

/// Whether a character is invisible or changes how the text around it is shown: control characters, line and paragraph
/// separators, annotations, and [default-ignorable](https://www.unicode.org/reports/tr44/#Default_Ignorable_Code_Point)
/// characters.
pub fn is_deceptive(character: char) -> bool {
    let code = u32::from(character);
    if code < 0x7F {
        return code < 0x20;
    }
    let is_in = |(first, last): &(u32, u32)| (*first..=*last).contains(&code);
    character.is_control()
        || matches!(code, 0x2028 | 0x2029 | 0xFFF9..=0xFFFB)
        || IGNORABLE.iter().any(is_in)
}

/// The first character that a name must not have.
pub fn deceptive_in(name: &str) -> Option<char> {
    name.chars().find(|character| is_deceptive(*character))
}

/// A text with such characters written as `\u{202e}`, and line breaks and tabs too.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if deceptive_in(text).is_none() {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match is_deceptive(character) {
            // Writing to a string cannot fail.
            true => drop(write!(shown, "\\u{{{:x}}}", u32::from(character))),
            false => shown.push(character),
        }
    }
    shown.into()
}

/// A name as a person may read it: in lower case, without invisible characters, and with full-width characters and
/// variants of `@` as the usual ones.
pub fn folded(name: &str) -> String {
    let seen = name
        .trim()
        .chars()
        .filter(|character| !is_deceptive(*character));
    let usual = seen.map(|character| match u32::from(character) {
        0xFE6B => '@',
        code @ 0xFF01..=0xFF5E => char::from_u32(code - 0xFEE0).unwrap_or(character),
        _ => character,
    });
    usual.flat_map(char::to_lowercase).collect()
}

/// Whether a name has the form of an e-mail address. Only users are called so.
pub fn is_like_email(name: &str) -> bool {
    let name = name.trim();
    let mut parts = name.split('@');
    parts.next().is_some_and(|local| !local.is_empty()) && parts.any(|host| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deceptive_characters_are_found_and_escaped() {
        for (text, shown) in [
            ("", ""),
            ("Ada Lovelace — 数 é", "Ada Lovelace — 数 é"),
            ("a\u{202E}b", "a\\u{202e}b"),
            ("a\u{200B}b", "a\\u{200b}b"),
            ("a\nb\u{7f}", "a\\u{a}b\\u{7f}"),
            ("\u{1b}[31m", "\\u{1b}[31m"),
            ("\u{2066}x\u{2069}", "\\u{2066}x\\u{2069}"),
            ("\u{E0041}\u{FE0F}\u{2028}", "\\u{e0041}\\u{fe0f}\\u{2028}"),
        ] {
            assert_eq!(escaped(text), shown, "{text:?}");
            assert_eq!(deceptive_in(text).is_none(), text == shown, "{text:?}");
        }
    }

    #[test]
    fn names_like_addresses_are_found() {
        for (name, is_like) in [
            ("ada@x.example", true),
            (" ada@x ", true),
            ("a@b@c", true),
            ("ada", false),
            ("@ada", false),
            ("ada@", false),
            ("@", false),
            ("", false),
        ] {
            assert_eq!(is_like_email(name), is_like, "{name}");
        }
        for name in [
            "Ada＠X.example",
            "ada﹫x.example",
            "a\u{200B}da@x.exam\u{AD}ple",
            " ADA@x.example ",
        ] {
            assert_eq!(folded(name), "ada@x.example", "{name}");
        }
    }
}
