//! Parses the documents that people write, such as policies, manifests and files of agents, into a tree: YAML 1.2 with
//! the core schema, or JSON.
//!
//! Aliases are resolved, within limits. Constructs that parsers read differently are rejected: duplicate keys, merge
//! keys, tags, more than one document. A text has its position in the source, so that a secret can be replaced in the
//! displayed policy.

mod outline;
mod places;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

pub use crate::outline::{Key, Part, PartKind, Scalar, Step};
use crate::places::Places;

/// Maximum length of a document, in bytes.
pub const TEXT_BYTES_MAX: usize = 256 << 10;
/// Maximum nesting of lists and objects.
const DEPTH_MAX: usize = 32;
/// Maximum number of nodes in the tree, including those of resolved aliases.
const NODES_MAX: usize = 50_000;
/// Maximum length of all its texts and keys, in bytes, including those of resolved aliases: an alias of four bytes may
/// stand for a text of any length.
const RESOLVED_BYTES_MAX: usize = 4 * TEXT_BYTES_MAX;

/// A part of a document.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// Nothing.
    Null,
    /// True or false.
    Bool(bool),
    /// A number.
    Number(Number),
    /// A text.
    Text(Text),
    /// A list.
    List(Vec<Node>),
    /// Keys are unique and in the order of the text.
    Object(Vec<(String, Node)>),
}

/// A text, and its position in the source, if known.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    /// The text.
    pub value: String,
    /// Its position in the source.
    pub at: Option<Range<usize>>,
}

/// Why a text is not a valid document. Displays as a sentence without a full stop, after the position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The sentence.
    pub why: String,
    /// Line and column, from 1, if they are known. Columns count characters.
    pub at: Option<(usize, usize)>,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((line, column)) = self.at {
            write!(f, "line {line}, column {column}: ")?;
        }
        f.write_str(&self.why)
    }
}

impl From<String> for Unreadable {
    fn from(why: String) -> Self {
        Self { why, at: None }
    }
}

impl Node {
    /// Reads a document.
    ///
    /// # Errors
    /// If the text is too long, is neither YAML nor JSON, or has a construct that parsers read differently.
    pub fn parse(text: &str) -> Result<Self, Unreadable> {
        if text.len() > TEXT_BYTES_MAX {
            let bytes = text.len();
            return Err(format!("it has {bytes} bytes; the limit is {TEXT_BYTES_MAX}").into());
        }
        let node = match yaml(text) {
            // Almost all JSON is YAML; the rest (tabs, escaped surrogates) is read as JSON.
            Err(_) if text.trim_start().starts_with('{') => {
                serde_json::from_str(text).map_err(|error| json_error(text, &error))
            }
            other => other,
        }?;
        node.measure(DEPTH_MAX)
            .filter(|nodes| *nodes <= NODES_MAX)
            .ok_or_else(too_large)?;
        Ok(node)
    }

    /// As JSON, which has no positions.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Number(value) => Value::Number(value.clone()),
            Self::Text(text) => Value::String(text.value.clone()),
            Self::List(items) => items.iter().map(Self::to_json).collect(),
            Self::Object(entries) => entries
                .iter()
                .map(|(key, value)| (key.clone(), value.to_json()))
                .collect(),
        }
    }

    /// The value under a key of an object.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(entries) => entries
                .iter()
                .find_map(|(name, value)| (name == key).then_some(value)),
            _ => None,
        }
    }

    /// The kind of node, for a sentence.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "true or false",
            Self::Number(_) => "a number",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }

    /// Visits every text below this node, in the order of the source.
    pub fn texts(&mut self, look: &mut dyn FnMut(&mut Text)) {
        match self {
            Self::Text(text) => look(text),
            Self::List(items) => items.iter_mut().for_each(|item| item.texts(look)),
            Self::Object(entries) => entries.iter_mut().for_each(|(_, value)| value.texts(look)),
            Self::Null | Self::Bool(_) | Self::Number(_) => {}
        }
    }

    /// The number of nodes; `None` if the tree is too deep.
    fn measure(&self, depth: usize) -> Option<usize> {
        let below = depth.checked_sub(1)?;
        match self {
            Self::List(items) => items
                .iter()
                .try_fold(1, |sum, item| Some(sum + item.measure(below)?)),
            Self::Object(entries) => entries
                .iter()
                .try_fold(1, |sum, (_, value)| Some(sum + value.measure(below)?)),
            _ => Some(1),
        }
    }
}

/// Reads a document as JSON, which has no positions.
///
/// # Errors
/// A sentence without a full stop.
pub fn read_yaml(text: &str) -> Result<Value, String> {
    Node::parse(text)
        .map(|node| node.to_json())
        .map_err(|unreadable| unreadable.to_string())
}

/// The error of JSON, with the column in characters.
fn json_error(text: &str, error: &serde_json::Error) -> Unreadable {
    let said = error.to_string();
    let (why, _) = said.rsplit_once(" at line ").unwrap_or((&said, ""));
    let line = text.lines().nth(error.line().saturating_sub(1));
    let before = line.and_then(|line| line.get(..error.column()));
    let column = before.map_or(error.column(), |before| before.chars().count());
    Unreadable {
        why: why.to_owned(),
        at: (error.line() > 0).then_some((error.line(), column.max(1))),
    }
}

fn too_large() -> Unreadable {
    format!("it is nested deeper than {DEPTH_MAX} levels or has more than {NODES_MAX} nodes").into()
}

/// How large a part of a document is when its aliases are resolved.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    nodes: usize,
    /// Of texts and keys.
    bytes: usize,
}

impl Size {
    /// Adds the size of a part.
    fn add(&mut self, part: Self) -> Result<(), Unreadable> {
        self.nodes += part.nodes;
        self.bytes += part.bytes;
        if self.nodes > NODES_MAX {
            return Err(too_large());
        }
        if self.bytes > RESOLVED_BYTES_MAX {
            let why = format!(
                "with its aliases resolved, its texts have more than {RESOLVED_BYTES_MAX} bytes"
            );
            return Err(why.into());
        }
        Ok(())
    }

    fn add_text(&mut self, text: &str) -> Result<(), Unreadable> {
        self.add(Self {
            nodes: 0,
            bytes: text.len(),
        })
    }
}

fn yaml(text: &str) -> Result<Node, Unreadable> {
    let mut reader = Reader {
        text,
        places: Places::of(text),
        events: Parser::new_from_str(text),
        anchors: HashMap::new(),
        size: Size::default(),
    };
    let mut document = None;
    loop {
        match reader.next()? {
            (Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd, _) => {}
            (Event::StreamEnd | Event::Nothing, _) => return Ok(document.unwrap_or(Node::Null)),
            (_, span) if document.is_some() => {
                return Err(at(span, "there is a second document"));
            }
            (event, span) => document = Some(reader.node(event, span, DEPTH_MAX)?),
        }
    }
}

struct Reader<'t> {
    text: &'t str,
    places: Places,
    events: Parser<'t, saphyr_parser::StrInput<'t>>,
    /// Anchors of complete nodes.
    anchors: HashMap<usize, (Node, Size)>,
    /// Of what was read so far.
    size: Size,
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Span), Unreadable> {
        match self.events.next_event() {
            None => Ok((Event::StreamEnd, Span::default())),
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => {
                let mark = error.marker();
                Err(Unreadable {
                    why: error.info().to_owned(),
                    at: Some((mark.line(), mark.col() + 1)),
                })
            }
        }
    }

    /// Reads the node that begins with `event`.
    fn node(&mut self, event: Event<'t>, span: Span, depth: usize) -> Result<Node, Unreadable> {
        let below = depth.checked_sub(1).ok_or_else(too_large)?;
        self.size.add(Size { nodes: 1, bytes: 0 })?;
        let before = self.size;
        let (node, anchor) = match event {
            Event::Scalar(value, style, anchor, tag) => {
                let is_text = match tag.as_deref() {
                    None => style != ScalarStyle::Plain,
                    Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => true,
                    Some(tag) => return Err(at(span, format!("the tag `{tag}` is not supported"))),
                };
                let node = if is_text {
                    None
                } else {
                    plain(&value).map_err(|why| at(span, why))?
                };
                self.size.add_text(&value)?;
                let text = || Node::Text(self.text(value.into_owned(), span));
                (node.unwrap_or_else(text), anchor)
            }
            Event::SequenceStart(_, Some(tag)) | Event::MappingStart(_, Some(tag)) => {
                return Err(at(span, format!("the tag `{tag}` is not supported")));
            }
            Event::SequenceStart(anchor, None) => {
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        (Event::SequenceEnd, _) => break (Node::List(items), anchor),
                        (event, span) => items.push(self.node(event, span, below)?),
                    }
                }
            }
            Event::MappingStart(anchor, None) => (self.object(below)?, anchor),
            Event::Alias(id) => {
                let contains_it = || at(span, "an alias refers to a node that contains it");
                let found = self.anchors.get(&id).ok_or_else(contains_it)?;
                let (node, size) = (&found.0, found.1);
                // Before the copy is made.
                self.size.add(size)?;
                return Ok(node.clone());
            }
            _ => return Err(at(span, "a value is missing")),
        };
        if anchor != 0 {
            let size = Size {
                nodes: self.size.nodes - before.nodes + 1,
                bytes: self.size.bytes - before.bytes,
            };
            // The copy takes memory too.
            self.size.add(size)?;
            self.anchors.insert(anchor, (node.clone(), size));
        }
        Ok(node)
    }

    fn object(&mut self, depth: usize) -> Result<Node, Unreadable> {
        let mut entries: Vec<(String, Node)> = Vec::new();
        let mut keys = HashSet::new();
        loop {
            let (event, span) = self.next()?;
            let key = match event {
                Event::MappingEnd => return Ok(Node::Object(entries)),
                Event::Scalar(key, ScalarStyle::Plain, _, None) if key == "<<" => {
                    return Err(at(span, "merge keys (`<<`) are not supported"));
                }
                Event::Scalar(key, _, _, None) => key.into_owned(),
                _ => return Err(at(span, "a key must be a string")),
            };
            self.size.add_text(&key)?;
            if !keys.insert(key.clone()) {
                return Err(at(span, format!("duplicate key `{key}`")));
            }
            let (event, span) = self.next()?;
            entries.push((key, self.node(event, span, depth)?));
        }
    }

    /// A text with its position.
    fn text(&self, value: String, span: Span) -> Text {
        let at = self.places.byte(span.start.index())..self.places.byte(span.end.index());
        Text {
            at: self.text.get(at.clone()).map(|_| at),
            value,
        }
    }
}

fn at(span: Span, why: impl fmt::Display) -> Unreadable {
    let start = span.start;
    Unreadable {
        why: why.to_string(),
        at: Some((start.line(), start.col() + 1)),
    }
}

/// Interprets a plain scalar by the core schema; `None` for text.
fn plain(text: &str) -> Result<Option<Node>, &'static str> {
    Ok(Some(match text {
        "" | "~" | "null" | "Null" | "NULL" => Node::Null,
        "true" | "True" | "TRUE" => Node::Bool(true),
        "false" | "False" | "FALSE" => Node::Bool(false),
        _ => match number(text)? {
            Some(number) => Node::Number(number),
            None => return Ok(None),
        },
    }))
}

fn number(text: &str) -> Result<Option<Number>, &'static str> {
    const TOO_LARGE: &str = "a number is too large";
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    for (prefix, radix) in [("0o", 8), ("0x", 16)] {
        if let Some(digits) = text.strip_prefix(prefix)
            && !digits.is_empty()
            && digits.chars().all(|digit| digit.is_digit(radix))
        {
            let number = u64::from_str_radix(digits, radix).map_err(|_| TOO_LARGE)?;
            return Ok(Some(number.into()));
        }
    }
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let plain = text.strip_prefix('+').unwrap_or(text);
        return match (plain.parse::<u64>(), plain.parse::<i64>()) {
            (Ok(number), _) => Ok(Some(number.into())),
            (_, Ok(number)) => Ok(Some(number.into())),
            _ => Err(TOO_LARGE),
        };
    }
    if [".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN"].contains(&digits) {
        return Err("a number must be finite");
    }
    let is_float = digits.starts_with(|first: char| first.is_ascii_digit() || first == '.')
        && digits.bytes().any(|byte| byte.is_ascii_digit())
        && digits
            .bytes()
            .all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte));
    if !is_float {
        return Ok(None);
    }
    match text.parse::<f64>() {
        Ok(number) => Number::from_f64(number).map(Some).ok_or(TOO_LARGE),
        Err(_) => Ok(None),
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Json;

        impl<'de> Visitor<'de> for Json {
            type Value = Node;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_unit<E>(self) -> Result<Node, E> {
                Ok(Node::Null)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
                Ok(Node::Bool(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
                Ok(Node::Number(value.into()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
                Ok(Node::Number(value.into()))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Node, E> {
                let number = Number::from_f64(value);
                Ok(Node::Number(
                    number.ok_or_else(|| E::custom("a number is too large"))?,
                ))
            }

            fn visit_str<E>(self, value: &str) -> Result<Node, E> {
                Ok(Node::Text(Text {
                    value: value.to_owned(),
                    at: None,
                }))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = access.next_element()? {
                    items.push(item);
                }
                Ok(Node::List(items))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
                let mut entries: Vec<(String, Node)> = Vec::new();
                let mut keys = HashSet::new();
                while let Some((key, value)) = access.next_entry::<String, Node>()? {
                    if !keys.insert(key.clone()) {
                        let why = format!("duplicate key `{key}`");
                        return Err(de::Error::custom(why));
                    }
                    entries.push((key, value));
                }
                Ok(Node::Object(entries))
            }
        }

        deserializer.deserialize_any(Json)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn json(text: &str) -> Value {
        Node::parse(text)
            .unwrap_or_else(|error| panic!("{text}: {error:?}"))
            .to_json()
    }

    #[test]
    fn the_texts_of_aliases_count() {
        let of = |n_aliases| {
            let text = "x".repeat(4096);
            format!("[&a {text}{}]", ", *a".repeat(n_aliases))
        };
        assert!(Node::parse(&of(254)).is_ok());
        let why = Node::parse(&of(255)).unwrap_err().why;
        let said = "with its aliases resolved, its texts have more than 1048576 bytes";
        assert_eq!(why, said);
        // Aliases of aliases, and keys.
        let nested = format!(
            "a: &a [{0}]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\nd: [*c, *c, *c]",
            "y".repeat(20_000)
        );
        assert_eq!(Node::parse(&nested).unwrap_err().why, said);
        let keys = format!("[&a {{{}: 1}}{}]", "k".repeat(900), ", *a".repeat(2000));
        assert_eq!(Node::parse(&keys).unwrap_err().why, said);
    }

    #[test]
    fn yaml_and_json_parse_to_equal_documents() {
        let expected = json!({"a": [1, "two", true, null, 1.5], "b": {"c": "0x"}});
        for text in [
            "a: [1, two, true, ~, 1.5]\nb:\n  c: 0x\n",
            "a:\n- 1\n- 'two'\n- true\n-\n- 1.5\nb: {c: !!str 0x}",
            r#"{"a": [1, "two", true, null, 1.5], "b": {"c": "0x"}}"#,
            "\t{\"a\":\t[1, \"two\", true, null, 1.5],\n\t\"b\": {\"c\":\t\"0x\"}}\n",
        ] {
            assert_eq!(json(text), expected, "{text}");
        }
        assert_eq!(json(r#"{"a": "\ud83d\ude00"}"#), json!({"a": "😀"}));
        assert_eq!(json(""), Value::Null);
        assert_eq!(
            json("- yes\n- 010\n- +5\n- 0o17\n- 0xfF\n- 1e3\n- .5\n- 1-2\n- 1.2.3\n- -7"),
            json!(["yes", 10, 5, 15, 255, 1000.0, 0.5, "1-2", "1.2.3", -7])
        );
        assert_eq!(
            json("a: &x {k: v}\nb: *x\nc: [*x]"),
            json!({"a": {"k": "v"}, "b": {"k": "v"}, "c": [{"k": "v"}]})
        );
    }

    #[test]
    fn ambiguous_documents_are_refused() {
        for (text, why) in [
            ("a: 1\na: 2", "line 2, column 1: duplicate key `a`"),
            (
                r#"{"a":	1, "a": 2}"#,
                "line 1, column 16: duplicate key `a`",
            ),
            ("a: &x {b: 1}\nc: {<<: *x}", "line 2, column 5: merge keys"),
            ("a: !secret x", "line 1, column 4: the tag `!secret`"),
            ("a: !!binary x", "the tag"),
            ("a: 1\n---\nb: 2", "second document"),
            ("a: &x [*x]", "a node that contains it"),
            ("[a]: 1", "a key must be a string"),
            ("a: *nothing", "line 1"),
            ("a: [1", "line"),
            ("a: .nan", "finite"),
            ("a: 99999999999999999999", "too large"),
        ] {
            let Err(said) = Node::parse(text) else {
                panic!("{text} is read");
            };
            let said = said.to_string();
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    #[test]
    fn yaml_aliases_cannot_expand_a_document() {
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..20 {
            let below = vec![format!("*a{}", level - 1); 10].join(",");
            bomb.push_str(&format!("a{level}: &a{level} [{below}]\n"));
        }
        assert_eq!(Node::parse(&bomb), Err(too_large()));
        for text in [
            "[".repeat(100_000),
            "{\"a\":".repeat(40_000),
            "- ".repeat(40_000),
        ] {
            assert!(Node::parse(&text).is_err());
        }
        assert!(Node::parse(&" ".repeat(TEXT_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn many_keys_and_texts_cost_little() {
        // A search through all keys, or all characters, for each of them would take minutes.
        let yaml: String = (0..16_000).map(|n| format!("é{n:05}: x\n")).collect();
        let keys: Vec<String> = (0..16_000).map(|n| format!("\"é{n:05}\": 1")).collect();
        let json = format!("{{\t{}}}", keys.join(","));
        for text in [yaml, json] {
            let Ok(Node::Object(entries)) = Node::parse(&text) else {
                panic!("it is not read");
            };
            assert_eq!(entries.len(), 16_000);
        }
    }

    #[test]
    fn strings_have_their_position_in_the_source() {
        for text in [
            "é: [plain]",
            "é: ['plain']",
            "é: [ \"pl\\x61in\" ] # x",
            "é:\n- |-\n  plain\nb: c",
            "é:\n- >-\n  plain",
        ] {
            let mut node = Node::parse(text).unwrap();
            let mut places = Vec::new();
            node.texts(&mut |found| places.push((found.value.clone(), found.at.clone())));
            assert_eq!(places[0].0, "plain", "{text}");
            let mut changed = text.to_owned();
            changed.replace_range(places[0].1.clone().unwrap(), "\"other\"");
            assert!(changed.contains("other"), "{changed}");
        }
    }
}
