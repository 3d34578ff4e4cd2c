//! The token of an API key: generates tokens, and checks their shape before any lookup.
//!
//! `<27 base62 characters, the body of the key's ID>_<21 random base62 characters><check character>`. The
//! check character is the CRC-32 of everything before it, modulo 62, so that typing errors and scanner noise
//! cost no lookup. Imported tokens without it are accepted.

use culvert_base::id::{BASE62, BODY_LENGTH};
use culvert_base::{Clock, Entropy, IdMaker, Ksuid, Secret};

/// Random characters of a token: 125 bits.
const SECRET_LENGTH: usize = 21;

/// A text that may be a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape<'t> {
    /// A token.
    Token {
        /// The body of the ID of its key, without the prefix.
        body: &'t str,
    },
    /// A token with a wrong check character.
    Mistyped,
    /// The id of an API key.
    KeyId,
    /// Something else.
    Unknown,
}

/// Creates a token for the ID with body `id`.
pub fn mint(id: Ksuid, entropy: &dyn Entropy) -> Secret {
    let mut token = id.to_string();
    token.reserve_exact(SECRET_LENGTH + 2);
    token.push('_');
    token.push_str(&entropy.text(BASE62, SECRET_LENGTH));
    token.push(check_character(&token));
    Secret::new(token)
}

/// Creates a token for the first key (setting `bootstrap.api_key`).
pub fn generate(clock: &dyn Clock, entropy: &dyn Entropy) -> Secret {
    mint(IdMaker::new().next(clock, entropy), entropy)
}

/// Whether `text` is a complete token with a correct check character.
pub fn is_token(text: &str) -> bool {
    matches!(shape(text), Shape::Token { .. }) && text.len() == BODY_LENGTH + SECRET_LENGTH + 2
}

/// Classifies `text`.
pub fn shape(text: &str) -> Shape<'_> {
    let is_base62 = |part: &str| part.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if text
        .strip_prefix("ak_")
        .is_some_and(|body| !body.is_empty() && is_base62(body))
    {
        return Shape::KeyId;
    }
    let Some((body, secret)) = text.split_once('_') else {
        return Shape::Unknown;
    };
    if body.len() != BODY_LENGTH || !is_base62(body) || !is_base62(secret) {
        return Shape::Unknown;
    }
    match secret.len() {
        SECRET_LENGTH => Shape::Token { body },
        length if length == SECRET_LENGTH + 1 => {
            let (before, check) = text.split_at(text.len() - 1);
            if check.starts_with(check_character(before)) {
                Shape::Token { body }
            } else {
                Shape::Mistyped
            }
        }
        _ => Shape::Unknown,
    }
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

    fn token() -> Secret {
        let clock = ManualClock::at(Timestamp::from_unix_seconds(1_800_000_000));
        generate(&clock, &SeededEntropy::new(1))
    }

    #[test]
    fn minted_tokens_have_a_valid_checksum_and_changed_ones_do_not() {
        let token = token();
        let text = token.reveal();
        assert_eq!(text.len(), 50);
        assert_eq!(shape(text), Shape::Token { body: &text[..27] });
        assert!(is_token(text));
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
    fn malformed_tokens_are_recognised() {
        let token = token();
        let imported = &token.reveal()[..49];
        assert!(matches!(shape(imported), Shape::Token { .. }));
        assert!(!is_token(imported));
        for (text, expected) in [
            ("ak_2h0bXHdzY5W9r3oLUMHCLCbPRUc", Shape::KeyId),
            ("ak_", Shape::Unknown),
            ("", Shape::Unknown),
            ("hunter2", Shape::Unknown),
            ("é_é", Shape::Unknown),
        ] {
            assert_eq!(shape(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_classified(text in ".{0,80}") {
            if let Shape::Token { body } = shape(&text) {
                prop_assert_eq!(body.len(), BODY_LENGTH);
            }
        }
    }
}
