//! Errors of conditions, with what was probably meant: `ev.status` is `ev.http.response.status_code`, `=` is `==`, and a
//! number is not compared with a text.

use culvert_base::text::similar::distance;
use culvert_base::{Refusal, code};
use culvert_cel::ast::{Expr, ExprKind, Literal, Operator};
use culvert_cel::{Error, ErrorKind, Limits, Position, parse_lenient};

use crate::catalogue::field::Type;
use crate::kinds;

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
            let hint = suggestion(dotted(source, position, name), &variables);
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
        ErrorKind::Syntax if begins_with_comparison(source) => {
            let message = format!(
                "filter, {error}; the field to compare comes first, as in `ev.http.response.status_code == 502`"
            );
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

/// The whole of `http.response.status_code` where its first name is at `position`: one forgot `ev.`.
fn dotted<'s>(source: &'s str, position: Position, name: &'s str) -> &'s str {
    let line = source
        .lines()
        .nth(usize::from(position.line.saturating_sub(1)));
    let line = line.unwrap_or_default();
    let skipped = usize::from(position.column.saturating_sub(1));
    let start = line.char_indices().nth(skipped).map(|(at, _)| at);
    let rest = start.map_or("", |at| &line[at..]);
    let is_of_path = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    let end = rest.find(|c| !is_of_path(c)).unwrap_or(rest.len());
    let path = rest[..end].trim_end_matches('.');
    match path.strip_prefix(name) {
        Some(below) if below.starts_with('.') => path,
        _ => name,
    }
}

/// The variables that a name may stand for.
fn suggestion(name: &str, variables: &[&str]) -> String {
    let bare = name.strip_prefix("ev.").unwrap_or(name);
    let last = bare.rsplit('.').next().unwrap_or(bare);
    let whole = format!("ev.{bare}");
    if whole != name && variables.contains(&whole.as_str()) {
        return format!("; did you mean `{whole}`?");
    }
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

/// Refuses the comparison of a field of traffic with a literal of another type, which never holds: `"502"` for `502`.
///
/// # Errors
/// 5404, with the literal that was meant.
pub(super) fn check_types(source: &str) -> Result<(), Refusal> {
    let Ok(expression) = parse_lenient(source, &Limits::FILTER) else {
        return Ok(());
    };
    match mistyped(&expression) {
        None => Ok(()),
        Some(message) => Err(Refusal::new(
            code::EVENT_FILTER_INVALID,
            format!("filter: {message}"),
        )),
    }
}

fn mistyped(expression: &Expr) -> Option<String> {
    match &expression.kind {
        ExprKind::And(parts) | ExprKind::Or(parts) => parts.iter().find_map(mistyped),
        ExprKind::Not(operand) => mistyped(operand),
        ExprKind::Conditional(parts) => parts.iter().find_map(mistyped),
        ExprKind::Binary {
            operator: Operator::Equal | Operator::NotEqual,
            left,
            right,
        } => pair(left, right).or_else(|| pair(right, left)),
        ExprKind::Binary {
            operator: Operator::In,
            left,
            right,
        } => match &right.kind {
            ExprKind::List(items) => items.iter().find_map(|item| pair(left, item)),
            _ => None,
        },
        _ => None,
    }
}

fn pair(variable: &Expr, literal: &Expr) -> Option<String> {
    let path = path_of(variable)?;
    let field = path.strip_prefix("ev.")?;
    let mut fields = kinds::ALL.iter().flat_map(|kind| kind.fields);
    let ty = fields.find(|one| one.path == field)?.ty;
    match (ty, &literal.kind) {
        (Type::Int32 | Type::Int64, ExprKind::Literal(Literal::String(text))) => {
            let hint = text.parse::<i64>().map_or(String::new(), |number| {
                format!("; did you mean `{path} == {number}`?")
            });
            Some(format!("{path} is a number, and {text:?} is a text{hint}"))
        }
        (Type::Text, ExprKind::Literal(Literal::Int(number))) => Some(format!(
            "{path} is a text, and {number} is a number; did you mean `{path} == \"{number}\"`?"
        )),
        _ => None,
    }
}

fn path_of(expression: &Expr) -> Option<String> {
    match &expression.kind {
        ExprKind::Name(name) => Some(name.to_string()),
        ExprKind::Select { operand, field } => Some(format!("{}.{field}", path_of(operand)?)),
        _ => None,
    }
}

/// Whether a condition begins with what compares: `== 502`.
fn begins_with_comparison(source: &str) -> bool {
    source.trim_start().starts_with(['=', '<', '>']) || source.trim_start().starts_with("!=")
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

#[cfg(test)]
mod tests {
    use crate::LogFilter;
    use crate::catalogue::{AuditKind, Catalogue};

    #[test]
    fn an_error_says_what_was_meant() {
        let catalogue = Catalogue::new(vec![AuditKind {
            name: "vault_created.v0".to_owned(),
            doc: String::new(),
            schema: serde_json::json!({"properties": {"id": {}, "name": {}}}),
        }]);
        for (source, hint) in [
            (
                "status == 502",
                "did you mean `ev.http.response.status_code`?",
            ),
            (
                "ev.status == 502",
                "did you mean `ev.http.response.status_code`?",
            ),
            (
                "http.response.status_code == 502",
                "did you mean `ev.http.response.status_code`?",
            ),
            (
                "1 == 1 &&\n  http.response.status_cod == 502",
                "did you mean `ev.http.response.status_code`?",
            ),
            (
                "== 502",
                "the field to compare comes first, as in `ev.http.response.status_code == 502`",
            ),
            ("  != 'GET'", "as in `ev.http.response.status_code == 502`"),
            ("http. == 5", "filter, 1:7"),
            (
                "'é' == http.response.status_code",
                "`ev.http.response.status_code`",
            ),
            (
                "ev.http.status_code == 502",
                "did you mean `ev.http.response.status_code`?",
            ),
            (
                "ev.http.request.url.hots == 'a'",
                "did you mean `ev.http.request.url.host`?",
            ),
            (
                "ev.body_length > 5",
                "did you mean `ev.http.request.body_length` or `ev.http.response.body_length`?",
            ),
            (
                "ev.http.response.status_code = 502",
                "`==` compares, `=` does not",
            ),
            (
                "ev.http.response.status_code == '502'",
                "did you mean `ev.http.response.status_code == 502`?",
            ),
            ("ev.http.response.status_code in ['502']", "is a number"),
            (
                "ev.conn.server_port == '443'",
                "a number is written without quotes",
            ),
            (
                "ev.http.request.url == 'x'",
                "such as `ev.http.request.url.host`",
            ),
            ("eventtype == 'x'", "did you mean `event_type`?"),
        ] {
            let refused = LogFilter::compile(&catalogue, source).unwrap_err();
            assert!(refused.to_string().contains(hint), "{source}: {refused}");
        }
    }
}
