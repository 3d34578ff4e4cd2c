//! Errors of conditions, with what was probably meant: `ev.status` is `ev.http.response.status_code`, `=` is `==`, and a
//! number is not compared with a text.

use culvert_base::{Refusal, code};
use culvert_cel::{Error, ErrorKind};

use crate::words::distance;

/// Names that people use for a field.
const ALIASES: [(&str, &str); 22] = [
    ("status", "ev.http.response.status_code"),
    ("status_code", "ev.http.response.status_code"),
    ("code", "ev.http.response.status_code"),
    ("method", "ev.http.request.method"),
    ("path", "ev.http.request.url.path"),
    ("url", "ev.http.request.url.raw"),
    ("uri", "ev.http.request.url.raw"),
    ("query", "ev.http.request.url.query"),
    ("host", "ev.http.request.url.host"),
    ("hostname", "ev.http.request.url.host"),
    ("domain", "ev.conn.server_name"),
    ("user_agent", "ev.http.request.user_agent"),
    ("agent", "ev.http.request.user_agent"),
    ("ip", "ev.conn.client_ip"),
    ("client", "ev.conn.client_ip"),
    ("remote_addr", "ev.conn.client_ip"),
    ("duration", "ev.culvert.duration_ms"),
    ("latency", "ev.culvert.duration_ms"),
    ("reason", "ev.culvert.reason"),
    ("error", "ev.culvert.reason"),
    ("type", "event_type"),
    ("time", "event_timestamp"),
];

/// The refusal of a condition on the fields of `variables`.
pub(super) fn refusal<'v>(
    error: Error,
    source: &str,
    variables: impl Iterator<Item = &'v String>,
) -> Refusal {
    let variables: Vec<&str> = variables.map(String::as_str).collect();
    let position = error.position;
    let (of_code, message) = match &error.kind {
        ErrorKind::UnknownField { path } => {
            let field = path.strip_prefix("ev.").unwrap_or(path);
            let hint = suggestion(path, &variables);
            let message = format!("filter, {position}: events have no field {field:?}{hint}");
            (code::EVENT_FILTER_FIELD_UNKNOWN, message)
        }
        ErrorKind::UnknownIdentifier { name } => {
            let hint = suggestion(name, &variables);
            (code::EVENT_FILTER_INVALID, format!("filter, {error}{hint}"))
        }
        ErrorKind::ObjectAsValue { path } => {
            let below: Vec<&str> = variables
                .iter()
                .copied()
                .filter(|name| {
                    name.strip_prefix(path.as_str())
                        .is_some_and(|rest| rest.starts_with('.'))
                })
                .take(SUGGESTIONS_MAX)
                .collect();
            let message = format!("filter, {error}, such as `{}`", below.join("` or `"));
            (code::EVENT_FILTER_INVALID, message)
        }
        ErrorKind::Syntax if has_single_equals(source) => {
            let message = format!("filter, {error}; `==` compares, `=` does not");
            (code::EVENT_FILTER_INVALID, message)
        }
        ErrorKind::Type => {
            let message = format!("filter, {error}{}", type_hint(&error.message));
            (code::EVENT_FILTER_INVALID, message)
        }
        _ => return super::refusal(error),
    };
    Refusal::new(of_code, message)
}

/// Maximum number of fields that a message names.
const SUGGESTIONS_MAX: usize = 3;

/// The variables that a name may stand for.
fn suggestion(name: &str, variables: &[&str]) -> String {
    let bare = name.strip_prefix("ev.").unwrap_or(name);
    let last = bare.rsplit('.').next().unwrap_or(bare);
    let alias = ALIASES
        .iter()
        .find(|(alias, _)| *alias == bare || *alias == last);
    let alias = alias
        .map(|(_, field)| *field)
        .filter(|field| variables.contains(field));
    let ends_so =
        |variable: &&&str| variable.rsplit('.').next() == Some(last) && variable.len() > last.len();
    let mut found: Vec<&str> = Vec::from_iter(alias);
    if found.is_empty() {
        found.extend(
            variables
                .iter()
                .filter(ends_so)
                .copied()
                .take(SUGGESTIONS_MAX),
        );
    }
    if found.is_empty() {
        let whole = format!("ev.{bare}");
        let near = |name: &str| distance(name, &whole).min(distance(name, bare));
        let nearest = variables.iter().map(|name| (near(name), *name)).min();
        // Suggests only similar names.
        let is_similar = |(distance, name): &(usize, &str)| 3 * distance <= name.len();
        found.extend(nearest.filter(is_similar).map(|(_, name)| name));
    }
    match found.as_slice() {
        [] => String::new(),
        found => format!("; did you mean `{}`?", found.join("` or `")),
    }
}

/// Whether a `=` outside of texts is neither `==` nor a part of another operator.
fn has_single_equals(source: &str) -> bool {
    let mut quote = None;
    let bytes = source.as_bytes();
    for (at, &byte) in bytes.iter().enumerate() {
        match (quote, byte) {
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), byte) if open == byte => quote = None,
            (None, b'=') => {
                let before = at.checked_sub(1).and_then(|at| bytes.get(at));
                let is_part = matches!(before, Some(b'=' | b'!' | b'<' | b'>'));
                if !is_part && bytes.get(at + 1) != Some(&b'=') {
                    return true;
                }
            }
            _ => {}
        }
    }
    false
}

fn type_hint(message: &str) -> &'static str {
    match message.contains("int") && message.contains("string") {
        true => "; a number is written without quotes, a text with them",
        false => "",
    }
}
