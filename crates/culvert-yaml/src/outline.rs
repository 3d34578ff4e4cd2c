//! The outline of a document: all its parts with their positions, as far as the text can be read. For editors: a text
//! that is being typed is rarely whole.
//!
//! Not here: whether a document is valid ([`Node::parse`](crate::Node::parse)).

use std::ops::Range;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput};

use crate::places::Places;
use crate::{DEPTH_MAX, NODES_MAX, TEXT_BYTES_MAX};

/// A part of a document, and its position in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its position. That of a list or an object begins with its first item.
    pub at: Range<usize>,
    /// What it is.
    pub kind: PartKind,
}

/// What a part of a document is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// A value without parts.
    Scalar(Scalar),
    /// A list.
    List(Vec<Part>),
    /// Keys and values, in the order of the text.
    Object(Vec<(Key, Part)>),
    /// An alias. The outline does not resolve it.
    Alias,
}

/// A value without parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar {
    /// The value, as text.
    pub value: String,
    /// Whether it is a plain scalar, which can be null, a bool or a number.
    pub is_plain: bool,
    /// Whether it is a block scalar (`|` or `>`).
    pub is_block: bool,
}

/// The key of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The key.
    pub name: String,
    /// Its position.
    pub at: Range<usize>,
}

/// A step from a part to a part in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The value of a key.
    Key(String),
    /// The item of a list, from 0.
    Item(usize),
}

impl Part {
    /// Reads as much of a text as is readable; `None` if that is nothing.
    pub fn outline(text: &str) -> Option<Self> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let lenient = json_as_yaml(text);
        let text = lenient.as_deref().unwrap_or(text);
        let mut reader = Reader {
            events: Parser::new_from_str(text),
            places: Places::of(text),
            end: text.len(),
            parts: 0,
        };
        loop {
            match reader.next() {
                None => return None,
                Some((Event::StreamStart | Event::DocumentStart(_), _)) => {}
                Some((event, span)) => return reader.part(event, span, DEPTH_MAX).0,
            }
        }
    }

    /// The part at the end of these steps.
    pub fn at(&self, steps: &[Step]) -> Option<&Self> {
        steps
            .iter()
            .try_fold(self, |part, step| match (&part.kind, step) {
                (PartKind::Object(entries), Step::Key(name)) => entries
                    .iter()
                    .find_map(|(key, value)| (key.name == *name).then_some(value)),
                (PartKind::List(items), Step::Item(index)) => items.get(*index),
                _ => None,
            })
    }

    /// The value of a key.
    pub fn get(&self, name: &str) -> Option<&Self> {
        self.entries()
            .iter()
            .find_map(|(key, value)| (key.name == name).then_some(value))
    }

    /// A key of the object.
    pub fn key(&self, name: &str) -> Option<&Key> {
        let mut keys = self.entries().iter().map(|(key, _)| key);
        keys.find(|key| key.name == name)
    }

    /// The keys and values of an object; of other parts, none.
    pub fn entries(&self) -> &[(Key, Self)] {
        match &self.kind {
            PartKind::Object(entries) => entries,
            _ => &[],
        }
    }

    /// The items of a list; of other parts, none.
    pub fn items(&self) -> &[Self] {
        match &self.kind {
            PartKind::List(items) => items,
            _ => &[],
        }
    }

    /// The value, if it has no parts.
    pub fn scalar(&self) -> Option<&Scalar> {
        match &self.kind {
            PartKind::Scalar(scalar) => Some(scalar),
            _ => None,
        }
    }
}

/// A JSON text with what YAML does not read replaced, at the same positions: tabs, and escaped surrogates, whose values
/// an outline does not need. `None` if the text is no JSON, or has neither.
fn json_as_yaml(text: &str) -> Option<String> {
    let is_json = text.trim_start().starts_with('{');
    if !is_json || !(text.contains('\t') || text.contains("\\u")) {
        return None;
    }
    let mut text = text.replace('\t', " ");
    for surrogate in ["\\ud", "\\uD"] {
        text = text.replace(surrogate, "\\u0");
    }
    Some(text)
}

struct Reader<'t> {
    events: Parser<'t, StrInput<'t>>,
    places: Places,
    end: usize,
    parts: usize,
}

impl<'t> Reader<'t> {
    /// The next event; `None` at the end, and where the text stops to be readable.
    fn next(&mut self) -> Option<(Event<'t>, Span)> {
        match self.events.next_event()? {
            Ok((Event::StreamEnd | Event::DocumentEnd | Event::Nothing, _)) | Err(_) => None,
            Ok(next) => Some(next),
        }
    }

    fn range(&self, span: Span) -> Range<usize> {
        let start = self.places.byte(span.start.index());
        start..self.places.byte(span.end.index()).max(start)
    }

    /// The part that begins with an event, and whether it is whole.
    fn part(&mut self, event: Event<'t>, span: Span, depth: usize) -> (Option<Part>, bool) {
        self.parts += 1;
        let at = self.range(span);
        let is_whole = self.parts <= NODES_MAX && depth > 0;
        if !is_whole {
            return (None, false);
        }
        match event {
            Event::Scalar(value, style, ..) => {
                let scalar = Scalar {
                    value: value.into_owned(),
                    is_plain: style == ScalarStyle::Plain,
                    is_block: matches!(style, ScalarStyle::Literal | ScalarStyle::Folded),
                };
                let kind = PartKind::Scalar(scalar);
                (Some(Part { at, kind }), true)
            }
            Event::Alias(_) => {
                let kind = PartKind::Alias;
                (Some(Part { at, kind }), true)
            }
            Event::SequenceStart(..) => self.list(at, depth - 1),
            Event::MappingStart(..) => self.object(at, depth - 1),
            _ => (None, false),
        }
    }

    fn list(&mut self, at: Range<usize>, depth: usize) -> (Option<Part>, bool) {
        let mut items = Vec::new();
        let (end, is_whole) = loop {
            match self.next() {
                Some((Event::SequenceEnd, span)) => break (self.range(span).end, true),
                Some((event, span)) => {
                    let (item, is_whole) = self.part(event, span, depth);
                    items.extend(item);
                    if !is_whole {
                        break (self.end, false);
                    }
                }
                None => break (self.end, false),
            }
        };
        let kind = PartKind::List(items);
        let at = at.start..end.max(at.end);
        (Some(Part { at, kind }), is_whole)
    }

    fn object(&mut self, at: Range<usize>, depth: usize) -> (Option<Part>, bool) {
        let mut entries = Vec::new();
        let (end, is_whole) = loop {
            let key = match self.next() {
                Some((Event::MappingEnd, span)) => break (self.range(span).end, true),
                Some((Event::Scalar(name, ..), span)) => Key {
                    name: name.into_owned(),
                    at: self.range(span),
                },
                _ => break (self.end, false),
            };
            let place = key.at.end..key.at.end;
            let (value, is_whole) = match self.next() {
                Some((event, span)) => self.part(event, span, depth),
                None => (None, false),
            };
            // A key whose value cannot be read is there all the same.
            let nothing = Scalar {
                value: String::new(),
                is_plain: true,
                is_block: false,
            };
            let value = value.unwrap_or(Part {
                at: place,
                kind: PartKind::Scalar(nothing),
            });
            entries.push((key, value));
            if !is_whole {
                break (self.end, false);
            }
        };
        let kind = PartKind::Object(entries);
        let at = at.start..end.max(at.end);
        (Some(Part { at, kind }), is_whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Step {
        Step::Key(name.to_owned())
    }

    #[test]
    fn parts_have_their_positions() {
        for text in [
            "é:\r\n  - a: wert\r\n    b: [x, 'y']\r\n",
            "é:\n  - a: wert\n    b:\n      - x\n      - y\n",
            "{\"é\": [{\"a\": \"wert\", \"b\": [\"x\", \"y\"]}]}",
            "{\t\"é\": [\t{\"a\": \"wert\", \"b\": [\"x\", \"y\", \"\\ud83d\\ude00\"]}]}",
        ] {
            let outline = Part::outline(text).unwrap();
            let found = outline.at(&[key("é"), Step::Item(0), key("a")]).unwrap();
            assert!(text[found.at.clone()].contains("wert"), "{text}");
            let item = outline.at(&[key("é"), Step::Item(0)]).unwrap();
            assert_eq!(
                &text[item.key("b").unwrap().at.clone()].trim_matches('"'),
                &"b"
            );
            let y = outline.at(&[key("é"), Step::Item(0), key("b"), Step::Item(1)]);
            assert!(text[y.unwrap().at.clone()].contains('y'), "{text}");
        }
    }

    #[test]
    fn what_is_readable_of_a_broken_text_is_outlined() {
        for text in [
            "a:\n  - b: 1\n    c: [x, y\n",
            "a:\n  - b: 1\n    c: {d: 'e\n",
            "{\"a\": [{\"b\": 1, \"c\": [",
            "a:\n  - b: 1\n    *",
        ] {
            let outline = Part::outline(text).unwrap();
            let b = outline.at(&[key("a"), Step::Item(0), key("b")]);
            assert_eq!(b.unwrap().scalar().unwrap().value, "1", "{text}");
        }
        for text in ["", "\0", "\u{feff}", "# x", "]", "%", "--- |"] {
            let _outline = Part::outline(text);
        }
        for text in [
            "[".repeat(100_000),
            "- ".repeat(40_000),
            "{a: ".repeat(40_000),
        ] {
            let _outline = Part::outline(&text);
        }
        assert_eq!(Part::outline(&"a".repeat(TEXT_BYTES_MAX + 1)), None);
    }
}
