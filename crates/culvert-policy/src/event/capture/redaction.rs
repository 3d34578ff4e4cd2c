//! Redaction of captured messages.
//!
//! The rules of the server for events apply to header fields, URLs and form bodies, except for the names that the
//! action reveals. A body for which the action has further rules is stored only if all of it can be read: it is
//! complete, its content coding is known, and it is UTF-8 text.

use std::borrow::Cow;

use bytes::Bytes;
use culvert_events::HeaderRules;
use culvert_events::bodies::{BodyOmission, CapturedBody, CapturedMessages, Field};
use culvert_http::coding;
use http::header::{CONTENT_ENCODING, HeaderMap, HeaderValue};
use regex::Regex;
use serde_json::Value;

use crate::event::capture::BODY_BYTES_MAX;
use crate::event::capture::json_path::{self, JsonPath};

const REDACTED: &str = "[redacted]";
/// Largest decoded body, in bytes.
const DECODED_BYTES_MAX: usize = 4 << 20;

/// What an action redacts besides the rules of the server, and what it reveals of those.
#[derive(Debug, Default)]
pub struct Redaction {
    /// Names of header fields, as [`header_key`] makes them.
    pub headers: Vec<String>,
    /// Names of query and form parameters, as [`HeaderRules::parameter_key`] makes them.
    pub parameters: Vec<Vec<u8>>,
    /// Values of JSON bodies.
    pub json: Vec<JsonPath>,
    /// Patterns whose matches are redacted.
    pub patterns: Vec<Regex>,
    /// Names of header fields, as [`header_key`] makes them, that the rules of the server redact.
    pub revealed_headers: Vec<String>,
    /// Names of parameters, as [`HeaderRules::parameter_key`] makes them, that the rules of the server redact.
    pub revealed_parameters: Vec<Vec<u8>>,
}

/// The name of a header field in lower case, with `-` for `_`.
pub fn header_key(name: &str) -> String {
    name.trim().to_ascii_lowercase().replace('_', "-")
}

/// A text that cannot be redacted.
struct Unreadable;

impl Redaction {
    /// Redacts both messages.
    pub(crate) fn apply(&self, messages: &mut CapturedMessages, defaults: &HeaderRules) {
        if let Some(request) = &mut messages.request {
            let url = self.text(self.url(request.url.as_bytes(), defaults));
            if url.as_bytes() != request.url.as_bytes() {
                request.url = url;
                request.is_url_redacted = true;
            }
            self.body(&request.headers, &mut request.body, defaults);
            self.fields(&mut request.headers, defaults);
            self.fields(&mut request.trailers, defaults);
        }
        if let Some(response) = &mut messages.response {
            self.body(&response.headers, &mut response.body, defaults);
            self.fields(&mut response.headers, defaults);
            self.fields(&mut response.trailers, defaults);
        }
    }

    fn fields(&self, fields: &mut [Field], defaults: &HeaderRules) {
        for field in fields {
            let key = header_key(&field.name);
            let is_secret = self.headers.contains(&key)
                || (defaults.redacts_header(&field.name) && !self.revealed_headers.contains(&key));
            if is_secret {
                field.redact();
                continue;
            }
            let shown = match defaults.is_url_header(&field.name) {
                true => self.url(field.value.as_bytes(), defaults),
                false => field.value.as_bytes().into(),
            };
            let shown = self.text(shown);
            if shown != field.value {
                field.value = shown;
                field.is_redacted = true;
            }
        }
    }

    /// Replaces the matches of all patterns.
    fn text(&self, text: Cow<'_, [u8]>) -> String {
        let mut text = String::from_utf8_lossy(&text).into_owned();
        for pattern in &self.patterns {
            if let Cow::Owned(shown) = pattern.replace_all(&text, REDACTED) {
                text = shown;
            }
        }
        text
    }

    fn hides_parameter(&self, name: &[u8], defaults: &HeaderRules) -> bool {
        let key = HeaderRules::parameter_key(name);
        self.parameters.contains(&key)
            || (defaults.redacts_parameter(name) && !self.revealed_parameters.contains(&key))
    }

    /// A URL, without the values of secret parameters in its query and its fragment.
    fn url<'u>(&self, url: &'u [u8], defaults: &HeaderRules) -> Cow<'u, [u8]> {
        match url.iter().position(|byte| b"?#".contains(byte)) {
            None => url.into(),
            Some(at) => match self.parameters(&url[at..], defaults) {
                Cow::Borrowed(_) => url.into(),
                Cow::Owned(shown) => [&url[..at], &shown].concat().into(),
            },
        }
    }

    /// A query or a form, without the values of secret parameters.
    fn parameters<'q>(&self, query: &'q [u8], defaults: &HeaderRules) -> Cow<'q, [u8]> {
        let (mut out, mut copied, mut start) = (Vec::new(), 0, 0);
        while start < query.len() {
            let rest = &query[start..];
            let length = rest.iter().position(|byte| b"&;?#".contains(byte));
            let parameter = &rest[..length.unwrap_or(rest.len())];
            let end = start + parameter.len();
            if let Some(name) = parameter.iter().position(|byte| *byte == b'=')
                && name + 1 < parameter.len()
                && self.hides_parameter(&parameter[..name], defaults)
            {
                out.extend_from_slice(&query[copied..=start + name]);
                out.extend_from_slice(REDACTED.as_bytes());
                copied = end;
            }
            start = end + 1;
        }
        if copied == 0 {
            return query.into();
        }
        out.extend_from_slice(&query[copied..]);
        out.into()
    }

    fn body(&self, headers: &[Field], body: &mut CapturedBody, defaults: &HeaderRules) {
        if body.omitted.is_some() {
            // The patterns might not match in a partial body.
            body.bytes = Vec::new();
            return;
        }
        let is_form = is_form(headers);
        let has_rules = !self.json.is_empty() || !self.patterns.is_empty();
        if (!has_rules && !is_form) || body.bytes.is_empty() {
            return;
        }
        match self.redacted(headers, body, is_form, defaults) {
            Ok(None) => {}
            Ok(Some(mut shown)) => {
                shown.truncate(DECODED_BYTES_MAX);
                body.bytes = shown;
                body.is_redacted = true;
            }
            Err(Unreadable) => {
                body.bytes = Vec::new();
                body.omitted = Some(BodyOmission::Redaction);
            }
        }
    }

    /// The body without its secrets; `None` if it has none.
    fn redacted(
        &self,
        headers: &[Field],
        body: &CapturedBody,
        is_form: bool,
        defaults: &HeaderRules,
    ) -> Result<Option<Vec<u8>>, Unreadable> {
        let has_rules = !self.json.is_empty() || !self.patterns.is_empty();
        let is_coded = headers.iter().any(|field| field.name == "content-encoding");
        if body.is_truncated && (has_rules || (is_coded && !body.is_redacted)) {
            return Err(Unreadable);
        }
        // A body that an earlier action redacted is stored without its coding.
        let plain = match is_coded && !body.is_redacted {
            true => decode(headers, &body.bytes)?,
            false => body.bytes.clone(),
        };
        let form = is_form.then(|| self.parameters(&plain, defaults));
        let shown = match &form {
            Some(Cow::Owned(shown)) => shown,
            Some(Cow::Borrowed(_)) | None => &plain,
        };
        let is_form_redacted = matches!(form, Some(Cow::Owned(_)));
        if !has_rules {
            return Ok(is_form_redacted.then(|| shown.clone()));
        }
        let text = std::str::from_utf8(shown).map_err(|_| Unreadable)?;
        if text.contains('\0') {
            // UTF-16 or binary: patterns would miss what a reader can decode.
            return Err(Unreadable);
        }
        let mut json: Option<Value> =
            serde_json::from_str(text.trim_start_matches('\u{feff}')).ok();
        let mut has_json_redacted = false;
        if !self.json.is_empty() {
            let value = json.as_mut().ok_or(Unreadable)?;
            has_json_redacted = json_path::redact(value, &self.json, REDACTED);
        }
        let text = match (&json, has_json_redacted) {
            (Some(value), true) => Cow::Owned(value.to_string()),
            _ => text.into(),
        };
        let mut found = self.text(text.as_bytes().into());
        if !self.patterns.is_empty() {
            found = self.escaped(&text, found, is_form)?;
        }
        let is_changed = is_form_redacted || has_json_redacted || found != text;
        Ok(is_changed.then(|| found.into_bytes()))
    }

    /// Finds matches that are hidden by the escapes of JSON or of forms. `found` is `text` after the patterns.
    fn escaped(&self, text: &str, found: String, is_form: bool) -> Result<String, Unreadable> {
        let matches = |text: &str| self.patterns.iter().any(|pattern| pattern.is_match(text));
        if is_form {
            let mut out = String::new();
            // A pattern that spans parameters changes their number, so they cannot be compared.
            if found.split('&').count() != text.split('&').count() {
                return Ok(found);
            }
            for (index, (parameter, shown)) in text.split('&').zip(found.split('&')).enumerate() {
                let (name, _) = parameter.split_once('=').unwrap_or(("", parameter));
                let plain: String = url::form_urlencoded::parse(parameter.as_bytes())
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                if index > 0 {
                    out.push('&');
                }
                if matches(&plain) {
                    out.push_str(if matches(name) { REDACTED } else { name });
                    out.push('=');
                    out.push_str(REDACTED);
                } else {
                    out.push_str(shown);
                }
            }
            return Ok(out);
        }
        if !text.contains('\\') {
            return Ok(found);
        }
        let normal = |text: &str| {
            let value: Value = serde_json::from_str(text.trim_start_matches('\u{feff}')).ok()?;
            Some(value.to_string())
        };
        let Some(before) = normal(text) else {
            return Ok(found);
        };
        if !matches(&before) {
            return Ok(found);
        }
        // After the replacements the text may not be JSON. Its hidden matches then cannot be found.
        let after = normal(&found).ok_or(Unreadable)?;
        Ok(self.text(after.as_bytes().into()))
    }
}

fn is_form(headers: &[Field]) -> bool {
    let mut types = headers.iter().filter(|field| field.name == "content-type");
    types.any(|field| {
        let essence = field.value.split(';').next().unwrap_or_default().trim();
        essence.eq_ignore_ascii_case("application/x-www-form-urlencoded")
    })
}

fn decode(headers: &[Field], bytes: &[u8]) -> Result<Vec<u8>, Unreadable> {
    let mut codings = HeaderMap::new();
    for field in headers {
        if field.name == "content-encoding" {
            let value = HeaderValue::from_bytes(field.value.as_bytes());
            codings.append(CONTENT_ENCODING, value.map_err(|_| Unreadable)?);
        }
    }
    let plain = coding::decode(&codings, Bytes::copy_from_slice(bytes), DECODED_BYTES_MAX);
    plain.map(Vec::from).map_err(|_| Unreadable)
}

/// The bytes of a captured body without its content coding, at most 1 MiB. `None` if it has none, or cannot be decoded.
pub fn decoded(headers: &[Field], body: &CapturedBody) -> Option<Vec<u8>> {
    let is_coded = headers.iter().any(|field| field.name == "content-encoding");
    if !is_coded || body.is_redacted || body.is_truncated {
        return None;
    }
    decode(headers, &body.bytes)
        .ok()
        .filter(|plain| plain.len() <= BODY_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use culvert_events::bodies::{CapturedRequest, CapturedResponse};
    use culvert_http::coding::{Coding, Encoder};

    use super::*;

    fn request(url: &str, headers: &[(&str, &str)], body: &[u8]) -> CapturedMessages {
        CapturedMessages {
            request: Some(CapturedRequest {
                method: "POST".to_owned(),
                url: url.to_owned(),
                is_url_redacted: false,
                headers: headers
                    .iter()
                    .map(|(name, value)| Field::new(name, value.as_bytes()))
                    .collect(),
                trailers: Vec::new(),
                body: CapturedBody {
                    bytes: body.to_vec(),
                    length: body.len() as u64,
                    ..CapturedBody::default()
                },
            }),
            response: None,
            owners: Vec::new(),
        }
    }

    fn shown(redaction: &Redaction, mut messages: CapturedMessages) -> CapturedRequest {
        redaction.apply(&mut messages, &HeaderRules::default());
        messages.request.unwrap()
    }

    fn patterns(sources: &[&str]) -> Redaction {
        Redaction {
            patterns: sources
                .iter()
                .map(|source| Regex::new(source).unwrap())
                .collect(),
            ..Redaction::default()
        }
    }

    fn paths(paths: &[&str]) -> Redaction {
        Redaction {
            json: paths
                .iter()
                .map(|path| JsonPath::parse(path).unwrap())
                .collect(),
            ..Redaction::default()
        }
    }

    #[test]
    fn credentials_in_fields_and_urls_are_redacted_in_any_spelling() {
        let messages = request(
            "http://a.test/?Token=1&%74oken=2&access-token=3&x=4#sig=5",
            &[
                ("authorization", "Bearer 1"),
                ("authorization", "Bearer 2"),
                ("x_api_key", "3"),
                ("x-more", "4"),
                ("X_More", "5"),
                ("referer", "http://b.test/?token=6&y=7"),
                ("accept", "*/*"),
            ],
            b"",
        );
        let redaction = Redaction {
            headers: vec![header_key("X-More")],
            parameters: vec![HeaderRules::parameter_key(b"x")],
            ..Redaction::default()
        };
        let request = shown(&redaction, messages);
        let redacted = "[redacted]";
        assert_eq!(
            request.url,
            format!(
                "http://a.test/?Token={redacted}&%74oken={redacted}&access-token={redacted}&x={redacted}#sig={redacted}"
            )
        );
        let values: Vec<_> = request.headers.iter().map(|field| &*field.value).collect();
        let referer = format!("http://b.test/?token={redacted}&y=7");
        assert_eq!(
            values,
            [
                redacted, redacted, redacted, redacted, redacted, &referer, "*/*"
            ]
        );
        assert!(request.is_url_redacted && request.headers[5].is_redacted);
        assert!(!request.headers[6].is_redacted);
    }

    #[test]
    fn fields_that_an_action_reveals_are_not_redacted() {
        let redaction = Redaction {
            revealed_headers: vec!["authorization".to_owned()],
            revealed_parameters: vec![HeaderRules::parameter_key(b"token")],
            ..Redaction::default()
        };
        let messages = request(
            "http://a.test/?token=1&sig=2",
            &[("authorization", "Bearer 1"), ("cookie", "a=b")],
            b"",
        );
        let request = shown(&redaction, messages);
        assert_eq!(request.url, "http://a.test/?token=1&sig=[redacted]");
        assert_eq!(request.headers[0].value, "Bearer 1");
        assert_eq!(request.headers[1].value, "[redacted]");
    }

    #[test]
    fn values_of_json_bodies_are_redacted_in_any_coding() {
        let text = br#"{"user":{"Password":"s\u0065cret","name":"x"},"password":"y"}"#;
        let redaction = paths(&["user.password"]);
        let plain = shown(&redaction, request("/", &[], text)).body;
        let wanted = r#"{"password":"y","user":{"Password":"[redacted]","name":"x"}}"#;
        assert_eq!(String::from_utf8(plain.bytes).unwrap(), wanted);
        for coding in Coding::ALL {
            let mut encoder = Encoder::new(coding);
            encoder.write(text).unwrap();
            let wire = encoder.finish().unwrap();
            let headers = [("content-encoding", coding.name())];
            let body = shown(&redaction, request("/", &headers, &wire)).body;
            assert_eq!(String::from_utf8(body.bytes).unwrap(), wanted);
            assert!(body.is_redacted && body.omitted.is_none());
        }
    }

    #[test]
    fn an_unreadable_body_that_may_have_secrets_is_not_stored() {
        let utf16: Vec<u8> = "{\"a\":1}"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        let mut cut = request("/", &[], b"{\"a\":1}");
        cut.request.as_mut().unwrap().body.is_truncated = true;
        for redaction in [paths(&["a"]), patterns(&["secret"])] {
            for messages in [
                request("/", &[("content-encoding", "zstd")], b"x"),
                request("/", &[("content-encoding", "gzip")], b"not gzip"),
                request(
                    "/",
                    &[("content-encoding", "gzip"), ("content-encoding", "x")],
                    b"x",
                ),
                request("/", &[], &utf16),
                request("/", &[], b"\xff\xfe"),
                cut.clone(),
            ] {
                let body = shown(&redaction, messages).body;
                assert_eq!(body.omitted, Some(BodyOmission::Redaction));
                assert!(body.bytes.is_empty());
            }
        }
        let deep = format!("{}1{}", "[".repeat(1000), "]".repeat(1000));
        for text in ["{\"a\":1", "{\"a\":1}{\"a\":2}", "a=1", &deep] {
            let body = shown(&paths(&["a"]), request("/", &[], text.as_bytes())).body;
            assert_eq!(body.omitted, Some(BodyOmission::Redaction), "{text}");
        }
    }

    #[test]
    fn escaped_matches_of_patterns_are_redacted() {
        let redaction = patterns(&["[0-9]{16}"]);
        for (media, text, wanted) in [
            ("text/plain", "card 4111111111111111.", "card [redacted]."),
            (
                "application/json",
                // The pattern also matches part of an escape. What is left is no JSON, so the body is omitted.
                r#"{"c": "\u0034111111111111111", "d": "\n"}"#,
                "",
            ),
            (
                "application/json",
                r#"{"c": "4111111111111111", "e": "\u0034111111111111111"}"#,
                "",
            ),
            (
                "application/x-www-form-urlencoded",
                "a=%34111111111111111&b=1&password=x",
                "a=[redacted]&b=1&password=[redacted]",
            ),
        ] {
            let messages = request(
                "/4111111111111111",
                &[("content-type", media)],
                text.as_bytes(),
            );
            let request = shown(&redaction, messages);
            assert_eq!(String::from_utf8(request.body.bytes).unwrap(), wanted);
            assert_eq!(request.url, "/[redacted]");
        }
        let clean = shown(&redaction, request("/", &[], b"{\"a\": \"\\n\"}")).body;
        assert_eq!(
            (&*clean.bytes, clean.is_redacted),
            (&b"{\"a\": \"\\n\"}"[..], false)
        );
    }

    #[test]
    fn credentials_in_truncated_forms_are_redacted() {
        let form = [(
            "content-type",
            "Application/X-WWW-Form-urlencoded; charset=utf-8",
        )];
        let mut messages = request("/", &form, b"user=x&password=geh");
        messages.request.as_mut().unwrap().body.is_truncated = true;
        let body = shown(&Redaction::default(), messages).body;
        assert_eq!(body.bytes, b"user=x&password=[redacted]");
        let coded = [form[0], ("content-encoding", "gzip")];
        let mut messages = request("/", &coded, b"\x1f\x8b...");
        messages.request.as_mut().unwrap().body.is_truncated = true;
        let body = shown(&Redaction::default(), messages).body;
        assert_eq!(body.omitted, Some(BodyOmission::Redaction));
    }

    #[test]
    fn redactions_of_two_actions_add_up() {
        let mut messages = CapturedMessages {
            owners: Vec::new(),
            request: None,
            response: Some(CapturedResponse {
                status_code: 200,
                headers: vec![Field::new("content-encoding", b"gzip")],
                trailers: Vec::new(),
                body: {
                    let mut encoder = Encoder::new(Coding::Gzip);
                    encoder.write(br#"{"a":1,"b":2}"#).unwrap();
                    CapturedBody {
                        bytes: encoder.finish().unwrap().to_vec(),
                        ..CapturedBody::default()
                    }
                },
            }),
        };
        paths(&["a"]).apply(&mut messages, &HeaderRules::default());
        paths(&["b"]).apply(&mut messages, &HeaderRules::default());
        let body = messages.response.unwrap().body;
        assert_eq!(
            String::from_utf8(body.bytes).unwrap(),
            r#"{"a":"[redacted]","b":"[redacted]"}"#
        );
    }
}
