//! References between objects: `${ip_policies/office}` is the ID of an object, `${reserved_addrs/game:addr}` another
//! field of it. Expressions of traffic policies have the same braces, and are left alone.

use serde_json::Value;

use super::kinds::{self, ManifestKind};

/// A reference in a text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Reference {
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) field: String,
}

/// Whether a name may stand in a reference.
pub(super) fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '*');
    (1..=128).contains(&name.len()) && name.chars().all(is_plain)
}

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TextPart<'t> {
    Text(&'t str),
    /// The inside of `${…}`.
    Inner(&'t str),
}

/// Splits a text at each `${…}`. `$${` is text.
pub(super) fn parts(text: &str) -> Vec<TextPart<'_>> {
    let mut parts = Vec::new();
    let (mut start, mut from) = (0, 0);
    while let Some(found) = text[from..].find("${").map(|at| from + at) {
        let inner = found + 2;
        let Some(end) = text[inner..].find('}').map(|at| inner + at) else {
            break;
        };
        if text[..found].ends_with('$') {
            from = inner;
            continue;
        }
        parts.push(TextPart::Text(&text[start..found]));
        parts.push(TextPart::Inner(&text[inner..end]));
        (start, from) = (end + 1, end + 1);
    }
    parts.push(TextPart::Text(&text[start..]));
    parts.retain(|part| *part != TextPart::Text(""));
    parts
}

impl Reference {
    /// Reads the inside of `${…}`; `None` if it is no reference.
    pub(super) fn parse(inner: &str) -> Option<Self> {
        let (kind, rest) = inner.split_once('/')?;
        let (name, field) = rest.split_once(':').unwrap_or((rest, "id"));
        let kind: &'static ManifestKind = kinds::kind(kind)?;
        let is_field =
            !field.is_empty() && field.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        (is_name(name) && is_field).then(|| Self {
            kind: kind.collection,
            name: name.to_owned(),
            field: field.to_owned(),
        })
    }
}

/// Collects the references in a value.
pub(super) fn references(value: &Value, found: &mut Vec<Reference>) {
    match value {
        Value::String(text) => {
            for part in parts(text) {
                if let TextPart::Inner(inner) = part {
                    found.extend(Reference::parse(inner));
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Object(entries) => entries.values().for_each(|value| references(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Replaces each reference by what `named_value` finds; `None` if it finds nothing for one.
pub(super) fn resolve(
    value: &Value,
    named_value: &dyn Fn(&Reference) -> Option<String>,
) -> Option<Value> {
    Some(match value {
        Value::String(text) => {
            let mut whole = String::with_capacity(text.len());
            for part in parts(text) {
                match part {
                    TextPart::Text(text) => whole.push_str(text),
                    TextPart::Inner(inner) => match Reference::parse(inner) {
                        Some(reference) => whole.push_str(&named_value(&reference)?),
                        None => whole.extend(["${", inner, "}"]),
                    },
                }
            }
            Value::String(whole)
        }
        Value::Array(items) => {
            let items = items.iter().map(|item| resolve(item, named_value));
            Value::Array(items.collect::<Option<_>>()?)
        }
        Value::Object(entries) => {
            let entries = entries
                .iter()
                .map(|(key, value)| Some((key.clone(), resolve(value, named_value)?)));
            Value::Object(entries.collect::<Option<_>>()?)
        }
        other => other.clone(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_reported_from_expressions() {
        let text = "a ${ip_policies/office} $${ip_policies/x} ${conn.client_ip} ${reserved_addrs/game:addr} ${a/b} ${";
        let mut found = Vec::new();
        references(&json!([{"x": text}]), &mut found);
        let shown: Vec<_> = found
            .iter()
            .map(|it| format!("{}/{}:{}", it.kind, it.name, it.field))
            .collect();
        assert_eq!(shown, ["ip_policies/office:id", "reserved_addrs/game:addr"]);
        let resolved = resolve(&json!(text), &|it| Some(it.field.to_uppercase())).unwrap();
        assert_eq!(
            resolved,
            "a ID $${ip_policies/x} ${conn.client_ip} ADDR ${a/b} ${"
        );
        assert_eq!(resolve(&json!({"a": ["${vaults/x}"]}), &|_| None), None);
    }

    #[test]
    fn a_text_without_references_is_unchanged() {
        for text in ["", "$", "${}", "}{$", "$${x}", "ü${"] {
            assert_eq!(
                resolve(&json!(text), &|_| None),
                Some(json!(text)),
                "{text}"
            );
        }
    }
}
