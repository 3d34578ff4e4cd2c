//! Tokens: makes them, and checks their shape before any lookup (contract: management API 1.5).
//!
//! `culvert_<kind>_<27 base62 characters, the body of an ID>_<21 random base62 characters><checksum>`. The checksum is the
//! CRC-32 of everything before it in six base62 characters, so that typing errors and scanner noise cost no lookup, and
//! scanners recognise a token without asking anyone.
//!
//! The plain form is that of published clients, without a kind: `<27 base62>_<21 base62><check character>`. The check
//! character is the CRC-32 of everything before it, modulo 62. Imported tokens without it are accepted. Cookies of the
//! console have the plain form.

use culvert_base::id::{BASE62, BODY_LENGTH};
use culvert_base::{Clock, Entropy, IdMaker, Ksuid, Secret};

/// Random characters of a token: 125 bits.
const SECRET_LENGTH: usize = 21;
/// Characters of the checksum of a token with a kind.
const CHECKSUM_LENGTH: usize = 6;
/// What texts have in place of a token.
pub const REDACTED: &str = "[redacted]";
/// What every token with a kind begins with.
const PREFIX: &str = "culvert_";

/// The regular expression of tokens with a kind, for scanners.
pub const PATTERN: &str = r"\bculvert_(key|agent|link|invite)_[0-9A-Za-z]{27}_[0-9A-Za-z]{27}\b";

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An API key.
    Key,
    /// A tunnel credential.
    Agent,
    /// A link that opens the console once.
    Link,
    /// An invitation.
    Invitation,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Key, Self::Agent, Self::Link, Self::Invitation];

    /// As in tokens.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Agent => "agent",
            Self::Link => "link",
            Self::Invitation => "invite",
        }
    }
}

/// The form of new tokens (`keys.token_form`). Both are always accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// With a kind and a checksum.
    #[default]
    Prefixed,
    /// That of published clients.
    Plain,
}

/// A text that may be a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape<'t> {
    /// A token.
    Token {
        /// The body of the ID of its object, without the prefix.
        body: &'t str,
        /// What it is for; `None` in the plain form.
        kind: Option<Kind>,
    },
    /// A token with a wrong checksum or check character.
    Mistyped,
    /// The id of an API key.
    KeyId,
    /// Something else.
    Unknown,
}

impl Form {
    /// Creates a token of this form for the ID with body `id`.
    pub fn mint(self, kind: Kind, id: Ksuid, entropy: &dyn Entropy) -> Secret {
        match self {
            Self::Plain => mint_plain(id, entropy),
            Self::Prefixed => {
                let mut token = format!("{PREFIX}{}_{id}_", kind.name());
                token.reserve_exact(SECRET_LENGTH + CHECKSUM_LENGTH);
                token.push_str(&entropy.text(BASE62, SECRET_LENGTH));
                let checksum = checksum(&token);
                token.extend(checksum.map(char::from));
                Secret::new(token)
            }
        }
    }

    /// Creates a token for the first key (setting `bootstrap.api_key`).
    pub fn generate(self, clock: &dyn Clock, entropy: &dyn Entropy) -> Secret {
        self.mint(Kind::Key, IdMaker::new().next(clock, entropy), entropy)
    }
}

/// Creates a token in the plain form.
pub fn mint_plain(id: Ksuid, entropy: &dyn Entropy) -> Secret {
    let mut token = id.to_string();
    token.reserve_exact(SECRET_LENGTH + 2);
    token.push('_');
    token.push_str(&entropy.text(BASE62, SECRET_LENGTH));
    token.push(check_character(&token));
    Secret::new(token)
}

/// The body of the ID in the token of an API key that is complete, with a checksum or a check character. `None` for other
/// texts.
pub fn body_of_key(text: &str) -> Option<&str> {
    let (body, kind) = match shape(text) {
        Shape::Token { body, kind } => (body, kind),
        _ => return None,
    };
    let is_complete = match kind {
        Some(kind) => kind == Kind::Key,
        None => text.len() == BODY_LENGTH + SECRET_LENGTH + 2,
    };
    is_complete.then_some(body)
}

/// A text without its tokens, for events and pages. A token is found between characters that tokens do not have.
pub fn redacted(text: &str) -> String {
    let is_between = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_';
    let mut shown = String::with_capacity(text.len());
    for piece in text.split_inclusive(is_between) {
        let word = piece.trim_end_matches(is_between);
        match shape(word) {
            Shape::Token { .. } => {
                shown.push_str(REDACTED);
                shown.push_str(&piece[word.len()..]);
            }
            _ => shown.push_str(piece),
        }
    }
    shown
}

/// Least characters of the secret part of a text that counts as a token, though it was cut off.
const PART_LENGTH: usize = 12;

/// Whether a text has a token in it, or most of one: with a wrong checksum, cut off, or with more behind it.
pub fn has_token(text: &str) -> bool {
    let is_between = |letter: char| !letter.is_ascii_alphanumeric() && letter != '_';
    text.split(is_between).any(|word| {
        let mut parts = word.split('_');
        let mut is_body = parts.any(|part| part.len() >= BODY_LENGTH);
        is_body &= parts.next().is_some_and(|part| part.len() >= PART_LENGTH);
        is_body || matches!(shape(word), Shape::Token { .. } | Shape::Mistyped)
    })
}

/// Classifies `text`.
pub fn shape(text: &str) -> Shape<'_> {
    if text
        .strip_prefix("ak_")
        .is_some_and(|body| !body.is_empty() && is_base62(body))
    {
        return Shape::KeyId;
    }
    if let Some(rest) = text.strip_prefix(PREFIX) {
        return prefixed(text, rest);
    }
    let Some((body, secret)) = text.split_once('_') else {
        return Shape::Unknown;
    };
    if body.len() != BODY_LENGTH || !is_base62(body) || !is_base62(secret) {
        return Shape::Unknown;
    }
    match secret.len() {
        SECRET_LENGTH => Shape::Token { body, kind: None },
        length if length == SECRET_LENGTH + 1 => {
            let (before, check) = text.split_at(text.len() - 1);
            if check.starts_with(check_character(before)) {
                Shape::Token { body, kind: None }
            } else {
                Shape::Mistyped
            }
        }
        _ => Shape::Unknown,
    }
}

/// Classifies a text that begins with [`PREFIX`]; `rest` follows it.
fn prefixed<'t>(text: &'t str, rest: &'t str) -> Shape<'t> {
    let mut parts = rest.split('_');
    let (Some(name), Some(body), Some(secret), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Shape::Unknown;
    };
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
    let has_lengths = body.len() == BODY_LENGTH && secret.len() == SECRET_LENGTH + CHECKSUM_LENGTH;
    let (Some(kind), true) = (kind, has_lengths && is_base62(body) && is_base62(secret)) else {
        return Shape::Unknown;
    };
    let (before, check) = text.split_at(text.len() - CHECKSUM_LENGTH);
    match checksum(before) == check.as_bytes() {
        true => Shape::Token {
            body,
            kind: Some(kind),
        },
        false => Shape::Mistyped,
    }
}

fn is_base62(part: &str) -> bool {
    part.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The CRC-32 of `before` as a number of six base62 digits, the most significant one first.
fn checksum(before: &str) -> [u8; CHECKSUM_LENGTH] {
    let mut rest = crc32fast::hash(before.as_bytes());
    let mut digits = [b'0'; CHECKSUM_LENGTH];
    for digit in digits.iter_mut().rev() {
        *digit = BASE62[usize::try_from(rest % 62).unwrap_or(0)];
        rest /= 62;
    }
    digits
}

fn check_character(before: &str) -> char {
    let remainder = crc32fast::hash(before.as_bytes()) % 62;
    char::from(BASE62[usize::try_from(remainder).unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use culvert_base::{ManualClock, SeededEntropy, Timestamp};
    use proptest::prelude::*;

    use super::*;

    fn token(form: Form) -> Secret {
        let clock = ManualClock::at(Timestamp::from_unix_seconds(1_800_000_000));
        form.generate(&clock, &SeededEntropy::new(1))
    }

    fn token_of(kind: Kind) -> Secret {
        let clock = ManualClock::at(Timestamp::from_unix_seconds(1_800_000_000));
        let entropy = SeededEntropy::new(1);
        Form::Prefixed.mint(kind, IdMaker::new().next(&clock, &entropy), &entropy)
    }

    #[test]
    fn minted_tokens_have_a_valid_checksum_and_changed_ones_do_not() {
        let token = token(Form::Plain);
        let text = token.reveal();
        assert_eq!(text.len(), 50);
        let body = &text[..27];
        assert_eq!(shape(text), Shape::Token { body, kind: None });
        assert_eq!(body_of_key(text), Some(body));
        for index in (0..27).chain(28..50) {
            let mut bytes = text.as_bytes().to_vec();
            bytes[index] = if bytes[index] == b'x' { b'y' } else { b'x' };
            assert_eq!(
                shape(&String::from_utf8(bytes).unwrap()),
                Shape::Mistyped,
                "{index}"
            );
        }
    }

    #[test]
    fn tokens_name_their_kind_and_changed_ones_are_not_looked_up() {
        for kind in Kind::ALL {
            let token = token_of(kind);
            let text = token.reveal();
            let start = PREFIX.len() + kind.name().len() + 1;
            let body = &text[start..start + 27];
            assert_eq!(text.len(), start + 27 + 1 + 27);
            let expected = Shape::Token {
                body,
                kind: Some(kind),
            };
            assert_eq!(shape(text), expected);
            assert_eq!(body_of_key(text), (kind == Kind::Key).then_some(body));
            for index in start..text.len() {
                let mut bytes = text.as_bytes().to_vec();
                bytes[index] = if bytes[index] == b'x' { b'y' } else { b'x' };
                let changed = String::from_utf8(bytes).unwrap();
                assert!(
                    matches!(shape(&changed), Shape::Mistyped | Shape::Unknown),
                    "{index}"
                );
            }
            // A token of one kind is none of another.
            for other in Kind::ALL.into_iter().filter(|other| *other != kind) {
                let changed = text.replacen(kind.name(), other.name(), 1);
                assert_eq!(shape(&changed), Shape::Mistyped);
            }
            let later = text.replacen(kind.name(), "later", 1);
            assert_eq!(shape(&later), Shape::Unknown);
        }
    }

    /// The vectors of the reference, which others test their scanners with.
    #[test]
    fn the_reference_has_the_pattern_and_valid_vectors() {
        let page = include_str!("../../../../docs/reference/tokens.md");
        let pattern = PATTERN.trim_start_matches(r"\b").trim_end_matches(r"\b");
        assert!(page.contains(pattern), "{PATTERN}");
        let mut kinds = Vec::new();
        let mut n_wrong = 0;
        for line in page.lines().filter(|line| line.starts_with("| `culvert_")) {
            let mut cells = line.split('|').map(str::trim).skip(1);
            let text = cells.next().unwrap().trim_matches('`');
            match (shape(text), cells.next().unwrap()) {
                (Shape::Token { kind, .. }, "valid") => kinds.extend(kind),
                (Shape::Mistyped | Shape::Unknown, "invalid") => n_wrong += 1,
                other => panic!("{text}: {other:?}"),
            }
        }
        assert_eq!(kinds, Kind::ALL);
        assert!(n_wrong >= 3, "{n_wrong}");
    }

    #[test]
    fn malformed_tokens_are_recognised() {
        let token = token(Form::Plain);
        let imported = &token.reveal()[..49];
        assert!(matches!(shape(imported), Shape::Token { kind: None, .. }));
        assert_eq!(body_of_key(imported), None);
        for (text, expected) in [
            ("ak_2h0bXHdzY5W9r3oLUMHCLCbPRUc", Shape::KeyId),
            ("ak_", Shape::Unknown),
            ("", Shape::Unknown),
            ("hunter2", Shape::Unknown),
            ("é_é", Shape::Unknown),
            ("culvert_", Shape::Unknown),
            ("culvert_key", Shape::Unknown),
            ("culvert_key__", Shape::Unknown),
            ("culvert_key_é_é", Shape::Unknown),
        ] {
            assert_eq!(shape(text), expected, "{text}");
        }
        let token = token_of(Kind::Key);
        let more = format!("{}_", token.reveal());
        assert_eq!(shape(&more), Shape::Unknown);
        assert_eq!(shape(&token.reveal()[..66]), Shape::Unknown);
    }

    #[test]
    fn a_token_is_recognised_also_if_it_is_damaged() {
        let tokens = Kind::ALL
            .map(token_of)
            .into_iter()
            .chain([token(Form::Plain)]);
        for token in tokens {
            let text = token.reveal();
            let end = text.len();
            for damaged in [
                text.to_owned(),
                format!("  {text}\n"),
                format!("https://a.example/?token={text}&x=y"),
                format!("{text}x"),
                text[..end - 1].to_owned(),
                text[..end - 9].to_owned(),
                format!("{}?", &text[..end - 1]),
            ] {
                assert!(has_token(&damaged), "{damaged}");
            }
        }
        for other in [
            "",
            "ep_2h0bXHdzY5W9r3oLUMHCLCbPRUc",
            "2h0bXHdzY5W9r3oLUMHCLCbPRUc",
            "culvert_key_",
            "a_b_c",
            "an_ordinary_but_rather_long_name_of_an_endpoint",
            "https://shop.example:8443/a_path",
        ] {
            assert!(!has_token(other), "{other}");
        }
    }

    #[test]
    fn texts_have_no_tokens() {
        let plain = token(Form::Plain);
        let key = token_of(Kind::Key);
        let (plain, key) = (plain.reveal(), key.reveal());
        for (text, expected) in [
            (
                format!("https://é.example/?k={key}&l={plain}#x"),
                "https://é.example/?k=[redacted]&l=[redacted]#x",
            ),
            (key.to_owned(), "[redacted]"),
            (format!("{key} "), "[redacted] "),
            (
                "https://git.example/a_b/blob/main".to_owned(),
                "https://git.example/a_b/blob/main",
            ),
            (String::new(), ""),
        ] {
            assert_eq!(redacted(&text), expected);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_classified(text in "(culvert_(key|agent|x)_)?.{0,80}") {
            if let Shape::Token { body, .. } = shape(&text) {
                prop_assert_eq!(body.len(), BODY_LENGTH);
            }
        }
    }
}
