//! Configurations as trees with lines, read from TOML and YAML. Importers take out what they know; the rest is noted.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::imported::Imported;

/// Limit of the depth of a configuration.
const DEPTH_MAX: usize = 32;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tree {
    /// Text, number, truth value or null, as written.
    Scalar(String),
    List(Vec<(usize, Tree)>),
    Table(Table),
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Table(Vec<Entry>);

/// An entry of a table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) value: Tree,
}

impl Table {
    /// Takes the value at a dotted path.
    pub(super) fn take(&mut self, path: &str) -> Option<(usize, Tree)> {
        if let Some((head, rest)) = path.split_once('.') {
            let at = self.0.iter().position(|entry| entry.key == head)?;
            let entry = self.0.get_mut(at)?;
            let Tree::Table(table) = &mut entry.value else {
                return None;
            };
            let taken = table.take(rest)?;
            if table.0.is_empty() {
                self.0.remove(at);
            }
            return Some(taken);
        }
        let at = self.0.iter().position(|entry| entry.key == path)?;
        let entry = self.0.remove(at);
        Some((entry.line, entry.value))
    }

    /// Takes a scalar.
    pub(super) fn text(&mut self, path: &str) -> Option<(usize, String)> {
        match self.take(path)? {
            (line, Tree::Scalar(text)) => Some((line, text)),
            (line, other) => {
                self.0.push(Entry {
                    key: path.to_owned(),
                    line,
                    value: other,
                });
                None
            }
        }
    }

    /// Takes a list of scalars, or one scalar.
    pub(super) fn texts(&mut self, path: &str) -> Vec<(usize, String)> {
        match self.take(path) {
            Some((line, Tree::Scalar(text))) => vec![(line, text)],
            Some((_, Tree::List(items))) => {
                let text = |(line, item)| match item {
                    Tree::Scalar(text) => Some((line, text)),
                    _ => None,
                };
                items.into_iter().filter_map(text).collect()
            }
            Some((line, other)) => {
                self.0.push(Entry {
                    key: path.to_owned(),
                    line,
                    value: other,
                });
                Vec::new()
            }
            None => Vec::new(),
        }
    }

    /// Takes a table.
    pub(super) fn table(&mut self, path: &str) -> Option<(usize, Self)> {
        match self.take(path)? {
            (line, Tree::Table(table)) => Some((line, table)),
            (line, other) => {
                self.0.push(Entry {
                    key: path.to_owned(),
                    line,
                    value: other,
                });
                None
            }
        }
    }

    /// Takes a list of tables.
    pub(super) fn tables(&mut self, path: &str) -> Vec<(usize, Self)> {
        match self.take(path) {
            Some((_, Tree::List(items))) => {
                let table = |(line, item)| match item {
                    Tree::Table(table) => Some((line, table)),
                    _ => None,
                };
                items.into_iter().filter_map(table).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The entries that are left, as names and texts.
    pub(super) fn into_texts(self) -> Vec<(usize, String, String)> {
        let text = |entry: Entry| match entry.value {
            Tree::Scalar(text) => Some((entry.line, entry.key, text)),
            _ => None,
        };
        self.0.into_iter().filter_map(text).collect()
    }

    /// Notes each part that is left. `reasons` has paths, or their beginnings, with reasons.
    pub(super) fn note_rest(self, place: &str, reasons: &[(&str, &str)], imported: &mut Imported) {
        for entry in self.0 {
            note(
                &format!("{place}{}", entry.key),
                entry.line,
                &entry.value,
                reasons,
                imported,
            );
        }
    }
}

fn note(path: &str, line: usize, value: &Tree, reasons: &[(&str, &str)], imported: &mut Imported) {
    let plain: String = path
        .split('[')
        .map(|part| part.split_once(']').map_or(part, |(_, rest)| rest))
        .collect();
    let is_within = |start: &str| plain.starts_with(start) || plain.contains(&format!(".{start}"));
    let reason = reasons.iter().find(|(start, _)| is_within(start));
    match value {
        Tree::Table(table) if reason.is_none() && !table.0.is_empty() => {
            for entry in &table.0 {
                note(
                    &format!("{path}.{}", entry.key),
                    entry.line,
                    &entry.value,
                    reasons,
                    imported,
                );
            }
        }
        Tree::List(items)
            if reason.is_none()
                && items
                    .iter()
                    .any(|(_, item)| !matches!(item, Tree::Scalar(_))) =>
        {
            for (index, (line, item)) in items.iter().enumerate() {
                note(&format!("{path}[{index}]"), *line, item, reasons, imported);
            }
        }
        _ => imported.note(
            line,
            path,
            reason.map_or("has no equivalent", |(_, why)| why),
        ),
    }
}

/// Reads TOML.
pub(super) fn read_toml(text: &str) -> Result<Table, String> {
    let starts: Vec<usize> = std::iter::once(0)
        .chain(text.match_indices('\n').map(|(at, _)| at + 1))
        .collect();
    let line = |at: usize| starts.partition_point(|start| *start <= at);
    let root = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(1, |span| line(span.start));
        format!("line {at}: {}", error.message())
    })?;
    Ok(of_toml(root.get_ref(), &line))
}

fn of_toml(table: &DeTable<'_>, line: &dyn Fn(usize) -> usize) -> Table {
    let mut entries: Vec<Entry> = table
        .iter()
        .map(|(key, value)| Entry {
            key: key.get_ref().to_string(),
            line: line(key.span().start),
            value: of_toml_value(value, line),
        })
        .collect();
    entries.sort_by_key(|entry| entry.line);
    Table(entries)
}

fn of_toml_value(value: &Spanned<DeValue<'_>>, line: &dyn Fn(usize) -> usize) -> Tree {
    match value.get_ref() {
        DeValue::String(text) => Tree::Scalar(text.to_string()),
        DeValue::Integer(number) => Tree::Scalar(number.as_str().replace('_', "")),
        DeValue::Float(number) => Tree::Scalar(number.as_str().to_owned()),
        DeValue::Boolean(value) => Tree::Scalar(value.to_string()),
        DeValue::Datetime(time) => Tree::Scalar(time.to_string()),
        DeValue::Array(items) => {
            let items = items
                .iter()
                .map(|item| (line(item.span().start), of_toml_value(item, line)));
            Tree::List(items.collect())
        }
        DeValue::Table(table) => Tree::Table(of_toml(table, line)),
    }
}

/// A list or table that is being read: its line, its content so far, and the key whose value is next, with its line.
type Unfinished = (usize, Tree, Option<(usize, String)>);

/// Reads YAML without aliases and tags.
pub(super) fn read_yaml(text: &str) -> Result<Table, String> {
    let mut parser = Parser::new_from_str(text);
    let mut stack: Vec<Unfinished> = Vec::new();
    let mut root = None;
    loop {
        let (event, span) = match parser.next() {
            None => break,
            Some(read) => {
                read.map_err(|error| format!("line {}: {}", error.marker().line(), error.info()))?
            }
        };
        let line = span.start.line();
        if stack.len() > DEPTH_MAX {
            return Err(format!("line {line}: it is nested too deeply"));
        }
        let finished = match event {
            Event::Scalar(text, style, ..) => {
                let is_null = style == ScalarStyle::Plain && matches!(&*text, "" | "~" | "null");
                Some((
                    line,
                    Tree::Scalar(if is_null {
                        String::new()
                    } else {
                        text.to_string()
                    }),
                ))
            }
            Event::SequenceStart(..) => {
                stack.push((line, Tree::List(Vec::new()), None));
                None
            }
            Event::MappingStart(..) => {
                stack.push((line, Tree::Table(Table::default()), None));
                None
            }
            Event::SequenceEnd | Event::MappingEnd => {
                stack.pop().map(|(line, tree, _)| (line, tree))
            }
            Event::Alias(_) => return Err(format!("line {line}: aliases are not supported")),
            _ => None,
        };
        let Some((line, tree)) = finished else {
            continue;
        };
        match stack.last_mut() {
            None => root = Some(tree),
            Some((_, Tree::List(items), _)) => items.push((line, tree)),
            Some((_, Tree::Table(table), key)) => match (key.take(), tree) {
                (Some((line, key)), value) => table.0.push(Entry { key, line, value }),
                (None, Tree::Scalar(text)) => *key = Some((line, text)),
                (None, _) => return Err(format!("line {line}: a key must be text")),
            },
            Some((_, Tree::Scalar(_), _)) => {}
        }
    }
    match root {
        Some(Tree::Table(table)) => Ok(table),
        _ => Err("line 1: it must be a mapping".to_owned()),
    }
}

/// A value as YAML.
pub(super) fn as_yaml(value: &Value) -> String {
    let mut text = String::new();
    write(value, 0, &mut text);
    text
}

fn write(value: &Value, indent: usize, text: &mut String) {
    let pad = "  ".repeat(indent);
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            // The kind and the name come first.
            let rank = |key: &str| match key {
                "version" | "kind" => 0,
                "name" | "type" => 1,
                "agent" | "url" | "expressions" | "domain" => 2,
                _ => 3,
            };
            let mut entries: Vec<_> = entries.iter().collect();
            entries.sort_by_key(|(key, _)| rank(key));
            for (key, value) in entries {
                let key = plain(key);
                match value {
                    Value::Object(inner) if !inner.is_empty() => {
                        text.push_str(&format!("{pad}{key}:\n"));
                        write(value, indent + 1, text);
                    }
                    Value::Array(inner) if !inner.is_empty() => {
                        text.push_str(&format!("{pad}{key}:\n"));
                        write(value, indent, text);
                    }
                    _ => text.push_str(&format!("{pad}{key}: {}\n", scalar(value))),
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let mut inner = String::new();
                match item {
                    Value::Object(entries) if !entries.is_empty() => {
                        write(item, indent + 1, &mut inner)
                    }
                    _ => inner = format!("{pad}  {}\n", scalar(item)),
                }
                text.push_str(&format!(
                    "{pad}- {}",
                    inner.get(pad.len() + 2..).unwrap_or_default()
                ));
            }
        }
        _ => text.push_str(&format!("{pad}{}\n", scalar(value))),
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => plain(text),
        other => other.to_string(),
    }
}

/// A text without quotes where YAML reads it as the same text.
fn plain(text: &str) -> String {
    let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| is_safe(c) || c == ':')
        && !text.ends_with(':')
        && !matches!(
            text.to_ascii_lowercase().as_str(),
            "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n"
        );
    match is_word {
        true => text.to_owned(),
        false => Value::from(text).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_read_back_from_their_yaml() {
        for value in [
            json!({"kind": "endpoints", "name": "a", "spec": {"url": "https://*.a.example", "list": [1, "x: y", true, {"a": ["b"], "c": {}}], "empty": [], "no": "no"}}),
            json!({"a": [{"b": {"c": "d\ne"}}], "number": "007", "null": null}),
        ] {
            let text = as_yaml(&value);
            assert_eq!(culvert_yaml::read_yaml(&text).unwrap(), value, "{text}");
        }
    }

    #[test]
    fn parsed_values_have_line_numbers() {
        let mut table =
            read_toml("a = 1\n[b]\nc.d = \"x\" # why\n[[e]]\nf = [\"g\",\n\"h\"]\n").unwrap();
        assert_eq!(table.text("a"), Some((1, "1".to_owned())));
        assert_eq!(table.text("b.c.d"), Some((3, "x".to_owned())));
        let (_, mut e) = table.tables("e").pop().unwrap();
        assert_eq!(e.texts("f"), [(5, "g".to_owned()), (6, "h".to_owned())]);
        assert_eq!(table, Table::default());
        let mut table =
            read_yaml("# top\ntunnel: x\ningress:\n  - service: a\n    more:\n      deep: [1]\n")
                .unwrap();
        assert_eq!(table.text("tunnel"), Some((2, "x".to_owned())));
        let (line, mut rule) = table.tables("ingress").pop().unwrap();
        assert_eq!((line, rule.text("service").unwrap().0), (4, 4));
        let mut imported = Imported::default();
        rule.note_rest("ingress[0].", &[], &mut imported);
        assert_eq!(
            (imported.notes[0].line, imported.notes[0].what.as_str()),
            (6, "ingress[0].more.deep")
        );
        assert!(read_toml("a =").unwrap_err().starts_with("line 1: "));
        assert!(read_yaml("a: [").is_err() && read_yaml("- a").is_err());
    }
}
