//! Query strings and percent-encoding (contract: management API 1.9).
//!
//! Control defines the parameters of operations.

use std::borrow::Cow;

use culvert_base::{Refusal, code};

/// Parses the parameters of a query in their order, with decoded names and values.
pub fn parse(query: &str) -> Result<Vec<(String, String)>, Refusal> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((form(name)?, form(value)?))
        })
        .collect::<Option<_>>()
        .ok_or_else(|| Refusal::of(code::QUERY_UNREADABLE))
}

/// Decodes a path segment. If that fails, it remains unchanged and matches nothing.
pub fn segment(text: &str) -> String {
    decode(Cow::Borrowed(text)).unwrap_or_else(|| text.to_owned())
}

/// Decodes a name or a value, in which `+` is a space.
fn form(text: &str) -> Option<String> {
    if text.contains('+') {
        decode(Cow::Owned(text.replace('+', " ")))
    } else {
        decode(Cow::Borrowed(text))
    }
}

fn decode(text: Cow<'_, str>) -> Option<String> {
    if !text.contains('%') {
        return Some(text.into_owned());
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            decoded.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            decoded.push(byte);
        }
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pairs(query: &str) -> Option<Vec<(String, String)>> {
        parse(query).ok()
    }

    #[test]
    fn parameters_are_decoded_in_order() {
        let expected = [
            ("id", "a"),
            ("id", "b c"),
            ("filter", "obj.a == \"é+\""),
            ("x", ""),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(
            pairs("id=a&id=b+c&&filter=obj.a%20%3D%3D+%22%C3%A9%2B%22&x").unwrap(),
            expected
        );
        assert_eq!(pairs("").unwrap(), []);
        for bad in ["a=%", "a=%4", "a=%zz", "%ff=1", "a=%c3%28", "a=%+1"] {
            assert_eq!(pairs(bad), None, "{bad}");
        }
        assert_eq!(segment("ak%5Fx"), "ak_x");
        assert_eq!(segment("%ff"), "%ff");
    }

    proptest! {
        #[test]
        fn encoded_parameters_are_decoded(given in prop::collection::vec((".{1,8}", ".{0,8}"), 0..6)) {
            let encode = |text: &str| text.bytes().map(|b| format!("%{b:02X}")).collect::<String>();
            let query = given
                .iter()
                .map(|(name, value)| format!("{}={}", encode(name), encode(value)))
                .collect::<Vec<_>>()
                .join("&");
            prop_assert_eq!(parse(&query).unwrap(), given);
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in ".{0,64}") {
            prop_assert!(parse(&text).is_ok_and(|pairs| pairs.len() <= 64) || text.contains('%'));
            prop_assert!(segment(&text).len() <= text.len());
        }
    }
}
