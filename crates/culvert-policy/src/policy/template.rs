//! Templates: configuration values with expressions in `${ … }`.
//!
//! A template is parsed once. An expression that fails yields an empty string, and the failure is noted.
//! Security-relevant callers use [`Template::strict`], which then returns no text. If an expression reaches a limit of
//! evaluation, the exchange rejects the request after the action, whatever the caller does with the text.

use std::borrow::Cow;

use culvert_cel::{PatternBudget, Slot, Value};
use serde_json::Value as Json;

use crate::policy::environments;
use crate::policy::exchange::Exchange;
use crate::policy::expression::Expression;
use crate::policy::phase::Phase;
use crate::policy::secret::REDACTED;
use crate::policy::taint::Mark;
use crate::policy::values::{check_size, map, of_number, push_text};

/// Longest text that a template yields, in bytes. Each expression may yield a long one.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// Text with expressions in it.
#[derive(Debug)]
pub struct Template {
    parts: Vec<Part>,
    mark: Mark,
}

#[derive(Debug)]
enum Part {
    Text(Box<str>),
    Expression(Expression),
}

impl Template {
    /// Parses a template of a phase. The error is a sentence without a full stop.
    pub fn parse(text: &str, phase: Phase, patterns: &PatternBudget) -> Result<Self, String> {
        let env = environments::of(phase);
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let (before, after) = rest.split_at(at);
            let after = &after[2..];
            if let Some(before) = before.strip_suffix('$') {
                plain.push_str(before);
                plain.push_str("${");
                rest = after;
                continue;
            }
            plain.push_str(before);
            let end = end_of_expression(after).ok_or_else(|| {
                "an expression that starts with `${` must end with `}`".to_owned()
            })?;
            let (source, behind) = after.split_at(end);
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain).into()));
            }
            let program = env
                .compile_within(patterns, source.trim())
                .map_err(|error| {
                    let shown: String = source.trim().chars().take(80).collect();
                    let why = environments::explain(&error, phase);
                    format!("the expression `{shown}` is invalid: {why}")
                })?;
            parts.push(Part::Expression(Expression::new(program)));
            rest = &behind[1..];
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain.into()));
        }
        let slots = slots(&parts).collect::<Vec<_>>();
        let mark = Mark::of(slots);
        Ok(Self { parts, mark })
    }

    /// Whether its text comes from a secret. Nothing that a person or another service sees may contain it.
    pub fn is_secret(&self) -> bool {
        self.mark.is_secret()
    }

    pub(crate) fn mark(&self) -> Mark {
        self.mark.clone()
    }

    /// The text, if it has no expression.
    pub fn constant(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Whether it is a single expression.
    pub fn is_one_expression(&self) -> bool {
        matches!(self.parts.as_slice(), [Part::Expression(_)])
    }

    /// The literal parts, in order.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(&**text),
            Part::Expression(_) => None,
        })
    }

    /// The text with `value` for each expression.
    pub fn sample(&self, value: &str) -> String {
        let parts = self.parts.iter().map(|part| match part {
            Part::Text(text) => &**text,
            Part::Expression(_) => value,
        });
        parts.collect()
    }

    /// The variables it reads.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        slots(&self.parts)
    }

    /// The text. An expression that fails yields an empty string; the failure is counted and recorded.
    pub fn render(&self, x: &mut Exchange<'_>) -> Cow<'_, str> {
        if let Some(text) = self.constant() {
            return text.into();
        }
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Expression(expression) => {
                    if let Ok(value) = expression.value(x, &*x) {
                        push_text(&mut out, value.borrow());
                    }
                    if out.len() > TEXT_BYTES_MAX {
                        x.limit_reached();
                        return Cow::default();
                    }
                }
            }
        }
        out.into()
    }

    /// The text, unless an expression fails or the text is too long.
    pub fn strict(&self, x: &mut Exchange<'_>) -> Result<Cow<'_, str>, NoText> {
        if let Some(text) = self.constant() {
            return Ok(text.into());
        }
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Expression(expression) => {
                    let value = expression.value(x, &*x).map_err(|_noted| NoText)?;
                    push_text(&mut out, value.borrow());
                    if out.len() > TEXT_BYTES_MAX {
                        x.limit_reached();
                        return Err(NoText);
                    }
                }
            }
        }
        Ok(out.into())
    }

    /// The value: that of the expression if the template is a single expression, otherwise the text.
    fn value(&self, x: &mut Exchange<'_>) -> Value {
        if let [Part::Expression(expression)] = self.parts.as_slice() {
            let value = expression.value(x, &*x);
            return value.unwrap_or_else(|_noted| Value::from(""));
        }
        Value::from(&*self.render(x))
    }
}

/// A template has no text: an expression failed, or the text is too long. The exchange has noted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an expression failed, or its text is too long")]
pub struct NoText;

fn slots(parts: &[Part]) -> impl Iterator<Item = Slot> {
    let slots = parts.iter().flat_map(|part| match part {
        Part::Text(_) => [].iter(),
        Part::Expression(expression) => expression.slots().iter(),
    });
    slots.copied()
}

/// A JSON value whose strings are templates.
#[derive(Debug)]
pub enum ValueTemplate {
    /// A value without strings.
    Constant(Value),
    /// A string.
    Text(Template),
    /// An array.
    List(Vec<ValueTemplate>),
    /// An object; its keys are not templates.
    Object(Vec<(String, ValueTemplate)>),
}

impl ValueTemplate {
    /// Parses the templates in a JSON value.
    pub(crate) fn parse<E>(
        json: &Json,
        parse: &mut dyn FnMut(&str) -> Result<Template, E>,
    ) -> Result<Self, E> {
        Ok(match json {
            Json::Null => Self::Constant(Value::Null),
            Json::Bool(value) => Self::Constant(Value::Bool(*value)),
            Json::Number(number) => Self::Constant(of_number(number)),
            Json::String(text) => Self::Text(parse(text)?),
            Json::Array(items) => Self::List(
                items
                    .iter()
                    .map(|item| Self::parse(item, parse))
                    .collect::<Result<_, _>>()?,
            ),
            Json::Object(entries) => Self::Object(
                entries
                    .iter()
                    .map(|(key, value)| Ok((key.clone(), Self::parse(value, parse)?)))
                    .collect::<Result<_, E>>()?,
            ),
        })
    }

    /// The variables it reads.
    pub fn slots(&self) -> Vec<Slot> {
        match self {
            Self::Constant(_) => Vec::new(),
            Self::Text(template) => template.slots().collect(),
            Self::List(items) => items.iter().flat_map(Self::slots).collect(),
            Self::Object(entries) => entries
                .iter()
                .flat_map(|(_, value)| value.slots())
                .collect(),
        }
    }

    /// The value for logs and events, in which secrets are `[redacted]`. It is null if it is too large; the exchange
    /// then rejects the request.
    pub fn render_shown(&self, x: &mut Exchange<'_>) -> Value {
        let value = self.part(x, true);
        sized(value, x)
    }

    /// The value. It is null if it is too large; the exchange then rejects the request.
    pub fn render(&self, x: &mut Exchange<'_>) -> Value {
        let value = self.part(x, false);
        sized(value, x)
    }

    fn part(&self, x: &mut Exchange<'_>, hides_secrets: bool) -> Value {
        match self {
            Self::Constant(value) => value.clone(),
            Self::Text(template) if hides_secrets && template.is_secret() => Value::from(REDACTED),
            Self::Text(template) => template.value(x),
            Self::List(items) => {
                let items = items.iter().map(|item| item.part(x, hides_secrets));
                Value::List(items.collect())
            }
            Self::Object(entries) => map(entries
                .iter()
                .map(|(key, value)| (key.as_str(), value.part(x, hides_secrets)))
                .collect()),
        }
    }
}

/// The value, unless it is too large, which the exchange notes.
fn sized(value: Value, x: &mut Exchange<'_>) -> Value {
    match check_size(value.borrow()) {
        Ok(()) => value,
        Err(_) => {
            x.limit_reached();
            Value::Null
        }
    }
}

/// The expressions of a template as written, up to the first error.
pub fn sources(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        rest = after;
        if before.ends_with('$') {
            continue;
        }
        let Some(end) = end_of_expression(after) else {
            break;
        };
        let (source, behind) = after.split_at(end);
        found.push(source.trim());
        rest = behind.get(1..).unwrap_or_default();
    }
    found
}

/// The end of the expression that begins here: the closing `}` outside of literals.
fn end_of_expression(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut open = 0_usize;
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'{' => open += 1,
            b'}' if open == 0 => return Some(at),
            b'}' => open -= 1,
            b'\'' | b'"' => at = end_of_literal(bytes, at)?,
            _ => {}
        }
        at += 1;
    }
    None
}

/// The last byte of the string literal that begins at `start`.
fn end_of_literal(bytes: &[u8], start: usize) -> Option<usize> {
    let quote = *bytes.get(start)?;
    let is_raw = start > 0
        && bytes
            .get(start - 1)
            .is_some_and(|before| b"rR".contains(before));
    let triple = [quote; 3];
    let is_triple = bytes.get(start..start + 3) == Some(&triple);
    let mut at = start + if is_triple { 3 } else { 1 };
    while let Some(byte) = bytes.get(at) {
        if *byte == b'\\' && !is_raw {
            at += 2;
            continue;
        }
        if is_triple && bytes.get(at..at + 3) == Some(&triple) {
            return Some(at + 2);
        }
        if !is_triple && *byte == quote {
            return Some(at);
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::policy::values::{moment, of_json, text, texts, to_json};

    #[test]
    fn the_end_of_an_expression_is_found() {
        for (text, end) in [
            ("a}b", Some(1)),
            ("{'a': 1}['a']}", Some(13)),
            ("'}' + \"}\"}", Some(9)),
            ("'\\'}'}x", Some(5)),
            ("r'\\'}", Some(4)),
            ("'''a'}'''}", Some(9)),
            ("'a", None),
            ("{", None),
        ] {
            assert_eq!(end_of_expression(text), end, "{text}");
        }
    }

    #[test]
    fn literals_and_escapes_are_parsed() {
        let patterns = PatternBudget::unlimited();
        let parse = |text: &str| Template::parse(text, Phase::Connect, &patterns);
        assert_eq!(parse("").unwrap().constant(), Some(""));
        assert_eq!(parse("a$${b} $c}").unwrap().constant(), Some("a${b} $c}"));
        let mixed = parse("a${1}b").unwrap();
        assert_eq!(mixed.literals().collect::<Vec<_>>(), ["a", "b"]);
        assert!(parse("${ '}' }").unwrap().is_one_expression());
        for wrong in ["${", "${1", "${}", "${nope}", "a${1 +}"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_are_formatted_as_text_and_json() {
        for (value, expected) in [
            (Value::Null, ""),
            (Value::Bool(true), "true"),
            (Value::Int(-3), "-3"),
            (Value::Double(1.5), "1.5"),
            (Value::Double(2.0), "2"),
            (Value::Bytes([1_u8, 2].as_slice().into()), "AQI="),
            (texts(["a", "b"]), r#"["a","b"]"#),
            (
                map(vec![("k", Value::Int(1)), ("k", Value::Int(2))]),
                r#"{"k":2}"#,
            ),
            (
                moment(culvert_base::Timestamp::from_unix_seconds(0)),
                "1970-01-01T00:00:00Z",
            ),
        ] {
            assert_eq!(text(value.borrow()), expected);
        }
        let json: Json = serde_json::from_str(r#"{"a":[1,2.0,0.5,"x",null,true]}"#).unwrap();
        let back = to_json(of_json(&json).borrow());
        assert_eq!(back.to_string(), r#"{"a":[1,2,0.5,"x",null,true]}"#);
    }
}
