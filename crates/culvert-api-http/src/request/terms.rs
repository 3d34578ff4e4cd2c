//! Conditions (RFC 9110 13) and `Idempotency-Key`, as fields of requests.
//!
//! Operations decide what they mean. A malformed entity tag is refused, because a condition that is not checked would let
//! through the write that it guards. A malformed date is ignored, as RFC 9110 demands.

use culvert_base::{Refusal, Timestamp, code};
use culvert_resources::operation::once::KEY_BYTES_MAX;
use culvert_resources::operation::terms::{Conditions, TagKey, Tags, Terms};
use http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_MATCH, IF_NONE_MATCH,
    IF_UNMODIFIED_SINCE, LAST_MODIFIED,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

use crate::response::answer::Body;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Of the response to a request that was answered before.
const REPEATED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The terms of a request.
///
/// # Errors
/// 261 and 267 for malformed fields.
pub fn of(method: &Method, headers: &HeaderMap, key: &TagKey) -> Result<Terms, Refusal> {
    let mut terms = Terms::default();
    // Other methods have the same effect when they are repeated.
    if *method == Method::POST {
        terms.key = idempotency_key(headers)?;
    }
    terms.conditions = Conditions {
        key: key.clone(),
        if_match: tags(headers, &IF_MATCH)?,
        if_none_match: tags(headers, &IF_NONE_MATCH)?,
        if_unmodified_since: headers
            .get(IF_UNMODIFIED_SINCE)
            .and_then(|value| Timestamp::parse_http_date(value.to_str().ok()?)),
    };
    Ok(terms)
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let text = value.to_str().ok().filter(|text| {
        (1..=KEY_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic())
    });
    match (text, values.next()) {
        (Some(text), None) => Ok(Some(text.to_owned())),
        _ => Err(Refusal::of(code::IDEMPOTENCY_KEY_INVALID)),
    }
}

/// The entity tags in all fields of this name; `None` if there is no such field.
fn tags(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Tags>, Refusal> {
    let malformed = || {
        let why =
            format!("`{name}` must be `*`, or entity tags such as `\"a1\"`, separated by commas.");
        Refusal::new(code::PRECONDITION_INVALID, why)
    };
    let mut found = Vec::new();
    let mut is_any = false;
    let mut is_given = false;
    for value in headers.get_all(name) {
        is_given = true;
        let mut rest = value.to_str().map_err(|_| malformed())?.trim();
        if rest == "*" {
            is_any = true;
            continue;
        }
        while !rest.is_empty() {
            let (tag, after) = tag(rest).ok_or_else(malformed)?;
            found.push(tag);
            rest = match after.trim_start() {
                "" => "",
                after => after.strip_prefix(',').ok_or_else(malformed)?.trim_start(),
            };
        }
    }
    match (is_given, is_any, found.is_empty()) {
        (false, _, _) => Ok(None),
        (true, true, true) => Ok(Some(Tags::Any)),
        (true, false, false) => Ok(Some(Tags::Of(found))),
        (true, _, _) => Err(malformed()),
    }
}

/// The first entity tag of a list: without quotes, and whether it is weak. Beside it, what follows.
fn tag(text: &str) -> Option<((String, bool), &str)> {
    let (is_weak, quoted) = match text.strip_prefix("W/") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (opaque, after) = quoted.strip_prefix('"')?.split_once('"')?;
    let is_valid = opaque
        .bytes()
        .all(|byte| byte == b'!' || (0x23..0x7f).contains(&byte));
    is_valid.then(|| ((opaque.to_owned(), is_weak), after))
}

/// The fields of a response that shows an object, with this body. The response is 304 if the client of a read has this
/// representation.
pub fn described(
    mut response: Response<Body>,
    method: &Method,
    terms: &Terms,
    tag: Option<&str>,
) -> Response<Body> {
    let headers = response.headers_mut();
    if terms.is_repeated() {
        headers.insert(REPEATED, HeaderValue::from_static("true"));
    }
    let (Some(shown), Some(tag)) = (terms.shown(), tag) else {
        return response;
    };
    let fields = [
        (ETAG, HeaderValue::from_str(tag)),
        (
            LAST_MODIFIED,
            HeaderValue::from_str(&shown.at.to_http_date()),
        ),
    ];
    if !headers.contains_key(CACHE_CONTROL) {
        // With a date, a browser would keep it for a while without asking.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    }
    for (name, value) in fields {
        if let Ok(value) = value {
            headers.insert(name, value);
        }
    }
    let known = terms.conditions.if_none_match.as_ref();
    if *method == Method::GET && known.is_some_and(|tags| tags.name(tag)) {
        headers.remove(CONTENT_TYPE);
        headers.remove(CONTENT_LENGTH);
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        *response.body_mut() = Body::empty();
    }
    response
}

/// The entity tag of a body that shows an object; `None` if it shows none.
pub fn tag_of(terms: &Terms, body: &str) -> Option<String> {
    let shown = terms.shown()?;
    Some(terms.conditions.key.entity_tag(&shown.state, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fields: &[(&'static str, &'static str)]) -> Result<Terms, u16> {
        let headers = fields
            .iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect::<Vec<_>>();
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, value);
        }
        of(&Method::POST, &map, &TagKey::default())
            .map_err(|refusal| refusal.code.unwrap().number())
    }

    #[test]
    fn entity_tags_are_read_or_refused() {
        let list = |text: &'static str| match read(&[("if-match", text)]) {
            Ok(terms) => match terms.conditions.if_match {
                Some(Tags::Any) => "*".to_owned(),
                Some(Tags::Of(tags)) => format!("{tags:?}"),
                None => String::new(),
            },
            Err(code) => code.to_string(),
        };
        for (text, expected) in [
            ("*", "*"),
            (r#""a""#, r#"[("a", false)]"#),
            (r#" "a" , W/"b,c""#, r#"[("a", false), ("b,c", true)]"#),
            (r#""""#, r#"[("", false)]"#),
            ("", "267"),
            ("a", "267"),
            (r#""a" "b""#, "267"),
            (r#""a"#, "267"),
            (r#"w/"a""#, "267"),
            (r#"*, "a""#, "267"),
        ] {
            assert_eq!(list(text), expected, "{text}");
        }
        let both = [("if-none-match", "*"), ("if-none-match", r#""a""#)];
        assert_eq!(read(&both).err(), Some(267));
        let two = [("if-none-match", r#""b""#), ("if-none-match", r#""a""#)];
        assert!(read(&two).is_ok());
        let date = |text| read(&[("if-unmodified-since", text)]).unwrap().conditions;
        assert!(date("Sun, 06 Nov 1994 08:49:37 GMT").guard());
        assert!(!date("yesterday").guard());
    }

    #[test]
    fn a_key_is_one_visible_text() {
        let long: &'static str = Box::leak("x".repeat(256).into_boxed_str());
        let key = |text| read(&[("idempotency-key", text)]).map(|terms| terms.key);
        assert_eq!(key("\"a-1\""), Ok(Some("\"a-1\"".to_owned())));
        assert_eq!(key(&long[1..]), Ok(Some(long[1..].to_owned())));
        for text in ["", long, "a b", "a\tb"] {
            assert_eq!(key(text), Err(261), "{text}");
        }
        let twice = [("idempotency-key", "a"), ("idempotency-key", "a")];
        assert_eq!(read(&twice).err(), Some(261));
    }
}
