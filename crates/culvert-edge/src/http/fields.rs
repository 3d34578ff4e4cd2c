//! Header fields that do not simply pass: those of one hop, those that say who is calling, and those
//! a trailer may not hold.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use culvert_base::{Code, Refusal};
use culvert_cel::Value;
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRAILER,
};

use crate::downstream::Downstream;
use crate::policy::template::Template;
use crate::policy::{Exchange, Site};

/// Code of an answer the edge made itself. Removed from what upstreams send, so its presence proves
/// that the edge answered.
pub(crate) const ERROR_CODE: HeaderName = HeaderName::from_static(ERROR_CODE_NAME);
const ERROR_CODE_NAME: &str = "ngrok-error-code";

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
pub(crate) const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Whether a field belongs to one hop only, or would if there were one: `close` is what `connection` says,
/// and no field's name.
fn is_of_one_hop(name: &str) -> bool {
    matches!(
        name,
        "close"
            | "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Whether a field says where a message ends or how it travels: the edge's own to say.
pub(crate) fn is_framing(name: &HeaderName) -> bool {
    is_of_one_hop(name.as_str())
        || *name == CONTENT_LENGTH
        || *name == TRAILER
        || *name == ERROR_CODE
}

/// Removes the fields of one hop, those that `connection` names, and those that `also` says.
fn strip(headers: &mut HeaderMap, also: impl Fn(&str) -> bool) {
    let mut stripped: Vec<HeaderName> = Vec::new();
    let mut has_connection = false;
    for (name, value) in headers.iter() {
        if *name == CONNECTION {
            has_connection = true;
            let value = value.as_bytes();
            // It nearly always says what goes whether it says so or not.
            if !value.eq_ignore_ascii_case(b"keep-alive") && !value.eq_ignore_ascii_case(b"close") {
                let named = value.split(|&b| b == b',').map(<[u8]>::trim_ascii);
                stripped.extend(named.filter_map(|named| HeaderName::from_bytes(named).ok()));
            }
        } else if is_of_one_hop(name.as_str()) || also(name.as_str()) {
            stripped.push(name.clone());
        }
    }
    if has_connection {
        headers.remove(CONNECTION);
    }
    for name in stripped {
        headers.remove(name);
    }
}

/// Whether a field says who is calling.
fn says_who_calls(name: &str) -> bool {
    name == "forwarded" || name == "x-real-ip" || name.starts_with("x-forwarded-")
}

/// Makes a client's fields those of our own request: strips what is of its hop, and says who calls.
///
/// `authority` is what the client asked for, as received.
pub(crate) fn to_upstream(headers: &mut HeaderMap, down: &Downstream, authority: HeaderValue) {
    let takes_trailers = has_token(headers, &TE, b"trailers");
    let trusted = down.is_trusted;
    strip(headers, |name| {
        name == "expect" || (!trusted && says_who_calls(name))
    });
    if let Some(length) = headers.get_mut(CONTENT_LENGTH) {
        plain_number(length);
    }
    if takes_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    // Of others nothing is left.
    let has = |headers: &HeaderMap, name: HeaderName| trusted && headers.contains_key(name);
    let mut client = down.client_value();
    if has(headers, X_FORWARDED_FOR) {
        client = joined(headers, &client);
    }
    headers.insert(X_FORWARDED_FOR, client);
    if !has(headers, X_FORWARDED_PROTO) {
        let scheme = if down.tls.get().is_some() {
            "https"
        } else {
            "http"
        };
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(scheme));
    }
    if !has(headers, X_FORWARDED_HOST) {
        headers.insert(X_FORWARDED_HOST, authority.clone());
    }
    headers.insert(HOST, authority);
}

/// Takes the zeros in front of a number away, which to some mean that it is octal.
fn plain_number(value: &mut HeaderValue) {
    let digits = value.as_bytes();
    if digits.len() > 1 && digits.first() == Some(&b'0') {
        let zeros = digits.iter().take_while(|&&b| b == b'0').count();
        let plain = digits.get(zeros.min(digits.len() - 1)..);
        if let Some(Ok(plain)) = plain.map(HeaderValue::from_bytes) {
            *value = plain;
        }
    }
}

/// What a trusted proxy said of those before it, and the proxy itself.
fn joined(headers: &HeaderMap, client: &HeaderValue) -> HeaderValue {
    let mut all = Vec::new();
    for value in headers.get_all(X_FORWARDED_FOR) {
        all.extend_from_slice(value.as_bytes());
        all.extend_from_slice(b", ");
    }
    all.extend_from_slice(client.as_bytes());
    HeaderValue::from_bytes(&all).unwrap_or_else(|_| client.clone())
}

/// Joins the `cookie` fields that HTTP/2 may split (RFC 9113 8.2.3).
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let mut all = Vec::new();
    for value in headers.get_all(COOKIE) {
        if !all.is_empty() {
            all.extend_from_slice(b"; ");
        }
        all.extend_from_slice(value.as_bytes());
    }
    if let Ok(value) = HeaderValue::from_bytes(&all) {
        headers.insert(COOKIE, value);
    }
}

/// Whether a name is of letters, digits and `-` alone, as nearly all are.
fn is_plain(name: &HeaderName) -> bool {
    let mut bytes = name.as_str().bytes();
    bytes.all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

/// A name as servers read it that keep fields in variables (CGI, WSGI and their like): each character that is no
/// letter and no digit is the same to them. With `-` for all of these.
fn folded(name: &HeaderName) -> String {
    let fold = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte),
        false => '-',
    };
    name.as_str().bytes().map(fold).collect()
}

/// Whether a field is the edge's own to say, or to act upon.
fn is_ours(name: &str) -> bool {
    let is_other = matches!(name, "content-length" | "expect" | "host" | "trailer");
    is_other
        || name == ERROR_CODE_NAME
        || is_of_one_hop(name)
        || says_who_calls(name)
        || name.starts_with("sec-websocket-")
}

/// Removes a client's fields that servers may take for others: names with an underscore, unless those are kept, and
/// names with other characters that read like a field of ours or like another one of the message.
pub(crate) fn strip_mixed_up(headers: &mut HeaderMap, keeps_underscores: bool) {
    if headers.keys().all(is_plain) {
        return;
    }
    let is_mixed_up = |name: &&HeaderName| {
        if is_plain(name) {
            return false;
        }
        let text = name.as_str();
        let is_odd = |byte: u8| byte != b'_' && byte != b'-' && !byte.is_ascii_alphanumeric();
        if !text.bytes().any(is_odd) {
            return !keeps_underscores;
        }
        let read = folded(name);
        let is_other = |other: &HeaderName| other != *name && folded(other) == read;
        text.contains('_') && !keeps_underscores || is_ours(&read) || headers.keys().any(is_other)
    };
    let names: Vec<HeaderName> = headers.keys().filter(is_mixed_up).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Removes fields that servers may take for one of these, which a policy is about to set or to remove.
pub(crate) fn strip_spellings<'n>(
    headers: &mut HeaderMap,
    of: impl Iterator<Item = &'n HeaderName> + Clone,
) {
    if headers.keys().all(is_plain) {
        return;
    }
    let is_one = |name: &&HeaderName| {
        let read = folded(name);
        !is_plain(name) && of.clone().any(|own| own != *name && folded(own) == read)
    };
    let names: Vec<HeaderName> = headers.keys().filter(is_one).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Makes an upstream's fields those of our own answer.
pub(crate) fn to_client(headers: &mut HeaderMap) {
    strip(headers, |name| name == ERROR_CODE_NAME);
}

/// Whether a list field holds a token, in any case.
pub(crate) fn has_token(headers: &HeaderMap, name: &HeaderName, token: &[u8]) -> bool {
    headers.get_all(name).iter().any(|value| {
        value
            .as_bytes()
            .split(|&b| b == b',')
            .any(|part| part.trim_ascii().eq_ignore_ascii_case(token))
    })
}

/// Whether an answer is a stream of events, for which silence is ordinary.
pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|value| {
        value
            .as_bytes()
            .get(..17)
            .is_some_and(|start| start.eq_ignore_ascii_case(b"text/event-stream"))
    })
}

/// Whether a request is a call of gRPC: a stream in both directions, at the pace of its two ends.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    headers.get(CONTENT_TYPE).is_some_and(|value| {
        let value = value.as_bytes();
        let begins = value.get(..GRPC.len());
        begins.is_some_and(|start| start.eq_ignore_ascii_case(GRPC))
            && matches!(
                value.get(GRPC.len()),
                None | Some(b'+' | b'-' | b';' | b' ')
            )
    })
}

/// Removes what may not be said after a body: framing, routing, credentials, and what changes how
/// the body is read.
pub(crate) fn strip_trailers(trailers: &mut HeaderMap) {
    strip(trailers, |name| {
        let is_other = matches!(
            name,
            "authorization"
                | "content-encoding"
                | "content-length"
                | "content-range"
                | "content-type"
                | "cookie"
                | "expect"
                | "host"
                | "set-cookie"
                | "trailer"
        );
        is_other || says_who_calls(name) || name == ERROR_CODE_NAME
    });
}

/// Header fields whose values are templates of a policy.
#[derive(Debug)]
pub(crate) struct FieldTemplates(Vec<(HeaderName, Template)>);

/// A header field that a policy makes.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: HeaderName,
    pub(crate) value: HeaderValue,
}

impl Field {
    /// Its value in the expression language.
    pub(crate) fn text(&self) -> Value {
        Value::from(&*String::from_utf8_lossy(self.value.as_bytes()))
    }
}

impl FieldTemplates {
    /// Checks names (2204), count (2218, 2223) and values (2224).
    pub(crate) fn compile(
        site: &Site<'_>,
        field: &str,
        given: &BTreeMap<String, String>,
        count: RangeInclusive<usize>,
    ) -> Result<Self, Refusal> {
        const NOT_A_FIELD: Code = Code::new(2204);
        if *count.start() > 0 || !given.is_empty() {
            site.count(field, given.len(), *count.end())?;
        }
        let mut templates = Vec::with_capacity(given.len());
        for (name, value) in given {
            let shown: String = name.chars().take(64).collect();
            let place = format!("{field}.{shown}");
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| {
                site.refuse(
                    NOT_A_FIELD,
                    &format!("`{place}`: this is not a header name"),
                )
            })?;
            let template = site.template(&place, value)?;
            if template
                .literals()
                .any(|text| HeaderValue::from_str(text).is_err())
            {
                let why = format!(
                    "`{place}`: a header value must not contain line breaks or control characters"
                );
                return Err(site.refuse(NOT_A_FIELD, &why));
            }
            templates.push((name, template));
        }
        Ok(Self(templates))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &HeaderName> {
        self.0.iter().map(|(name, _)| name)
    }

    /// The variables the values read.
    pub(crate) fn slots(&self) -> impl Iterator<Item = culvert_cel::Slot> {
        self.0.iter().flat_map(|(_, template)| template.slots())
    }

    /// The fields. One whose value would break the message is left out and counted.
    pub(crate) fn render(&self, x: &mut Exchange<'_>) -> Vec<Field> {
        let mut fields = Vec::with_capacity(self.0.len());
        for (name, template) in &self.0 {
            match HeaderValue::from_str(&template.render(x)) {
                Ok(value) => fields.push(Field {
                    name: name.clone(),
                    value,
                }),
                Err(_) => x.down.edge.meters.policy_failures.up(),
            }
        }
        fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect()
    }

    #[test]
    fn fields_of_one_hop_do_not_pass() {
        let mut headers = fields(&[
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "gzip"),
            ("upgrade", "h2c"),
            ("ngrok-error-code", "ERR_NGROK_1"),
            ("x-else", "2"),
        ]);
        to_client(&mut headers);
        assert_eq!(headers, fields(&[("x-else", "2")]));
    }

    #[test]
    fn trailers_cannot_change_what_came_before() {
        let mut trailers = fields(&[
            ("content-length", "1"),
            ("set-cookie", "a=b"),
            ("grpc-status", "0"),
        ]);
        strip_trailers(&mut trailers);
        assert_eq!(trailers, fields(&[("grpc-status", "0")]));
    }

    #[test]
    fn split_cookies_become_one() {
        let mut headers = HeaderMap::new();
        for cookie in ["a=1", "b=2"] {
            headers.append(COOKIE, HeaderValue::from_static(cookie));
        }
        join_cookies(&mut headers);
        assert_eq!(headers, fields(&[("cookie", "a=1; b=2")]));
    }
}
