//! The `filter` parameter of lists: a subset of CEL over one object named `obj` (contract: management API
//! 1.10).
//!
//! Fields, types and the type of the result are checked before the first object is read, so evaluation cannot
//! fail. Comparisons follow the contract where it differs from CEL: an unset text equals both `""` and
//! `null`, an empty list equals `[]`, `null` and `""`, and a reference compares as its ID. Event
//! subscriptions use another filter language (`culvert-cel`), which is strict where this one is lenient.
//!
//! `list` chooses the objects to evaluate and limits the cost.

use std::time::Duration;

use culvert_base::{Refusal, Timestamp, code};
use culvert_store::TextField;
use serde_json::Value as Json;

mod span;

pub(crate) use span::{Looked, Span};

/// Longest filter, in bytes.
const SOURCE_BYTES_MAX: usize = 4096;
/// Limit of comparisons, function calls and bare flags in one filter.
const CONDITIONS_MAX: usize = 64;
/// Deepest nesting of parentheses, lists and negations.
const DEPTH_MAX: usize = 32;

/// A field that filters may name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    /// The name after `obj.`.
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
}

/// The type of a field, and its location in the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Text that the stored form has under the same name, so the store can search for it.
    Text,
    /// Text that the stored form has in the object with this name.
    Within(&'static str),
    /// An identifier: text without string functions.
    Id,
    Time,
    Flag,
    List,
    /// `{"id", "uri"}`; compares as its ID, with or without `.id`.
    Reference,
    /// A reference that the store indexes.
    Link,
    /// The first element of the list with this name.
    First(&'static str),
    /// The type of an endpoint, for which `agent` means `ephemeral`.
    EndpointType,
}

/// The fields of every resource that has an ID, a creation time, a description and metadata.
pub(crate) const ID: Field = field("id", Shape::Id);
pub(crate) const CREATED_AT: Field = field("created_at", Shape::Time);
pub(crate) const DESCRIPTION: Field = field("description", Shape::Text);
pub(crate) const METADATA: Field = field("metadata", Shape::Text);

impl Field {
    /// Its location in the stored form; `None` for a field that the store cannot search.
    pub(crate) fn stored(self) -> Option<TextField> {
        let within = match self.shape {
            Shape::Within(object) => Some(object),
            Shape::Text => None,
            Shape::Id if self.name != ID.name => None,
            _ => return None,
        };
        let name = self.name;
        Some(TextField { name, within })
    }
}

pub(crate) const fn field(name: &'static str, shape: Shape) -> Field {
    Field { name, shape }
}

/// Cost of one part of an expression, and of one byte of a text that it reads; a unit is about a nanosecond.
const PART_WORK: u64 = 10;
const TEXT_BYTE_WORK: u64 = 1;

/// A checked filter.
#[derive(Debug)]
pub(crate) struct ListFilter {
    expr: Expr,
    /// Number of parts of the expression.
    n_parts: u64,
    /// The fields it refers to, with the number of references.
    named: Vec<(Field, u64)>,
}

impl ListFilter {
    /// Checks `source` against the fields of a resource. `now` is the value of `time.now`.
    pub(crate) fn compile(
        source: &str,
        fields: &'static [Field],
        now: Timestamp,
    ) -> Result<Self, Refusal> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(refusal(format!(
                "it is longer than {SOURCE_BYTES_MAX} bytes"
            )));
        }
        let mut parser = Parser {
            tokens: lex(source)?,
            next: 0,
            fields,
            now,
            n_conditions: 0,
            depth: 0,
        };
        let typed = parser.or()?;
        if parser.peek() != &Token::End {
            return Err(parser.unexpected("an operator or the end"));
        }
        let mut filter = Self {
            expr: condition(typed, 0)?,
            n_parts: 0,
            named: Vec::new(),
        };
        let (mut n_parts, mut named) = (0, Vec::new());
        filter.expr.count(&mut n_parts, &mut named);
        (filter.n_parts, filter.named) = (n_parts, named);
        Ok(filter)
    }

    /// Bounds of all matching objects, so that the store reads fewer others.
    pub(crate) fn span(&self, shown_prefix: &str) -> Span {
        let mut span = Span::default();
        span.narrow(&self.expr, shown_prefix);
        span
    }

    /// Whether the object, as the API shows it, matches.
    pub(crate) fn matches(&self, object: &Json) -> bool {
        truth(&self.expr, object)
    }

    /// The maximum cost of evaluating it on the object.
    pub(crate) fn work(&self, object: &Json) -> u64 {
        let of_field = |(field, times): &(Field, u64)| {
            let length = match hold_field(*field, object) {
                Held::Text(text) => text.len(),
                // Comparing an element of a list costs as much as a part of the expression.
                Held::Stored(items) => items.len().saturating_mul(64),
                _ => 32,
            };
            let length = u64::try_from(length).unwrap_or(u64::MAX);
            length.saturating_mul(TEXT_BYTE_WORK).saturating_mul(*times)
        };
        let fields = self.named.iter().map(of_field);
        fields.fold(self.n_parts.saturating_mul(PART_WORK), u64::saturating_add)
    }
}

fn refusal(why: impl std::fmt::Display) -> Refusal {
    Refusal::new(
        code::LIST_FILTER_INVALID,
        format!("The filter is invalid: {why}."),
    )
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Name(String),
    Text(String),
    Integer(i64),
    Symbol(&'static str),
    End,
}

const SYMBOLS: &[&str] = &[
    "&&", "||", "<=", "==", "!=", ">=", "<", ">", "!", "(", ")", "[", "]", ",", ".", "-", "+", "*",
    "/", "%", "?", ":", "{", "}",
];

/// Tokens with their start positions in bytes; the last one is the end.
fn lex(source: &str) -> Result<Vec<(Token, usize)>, Refusal> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(rest) = source.get(at..).filter(|rest| !rest.is_empty()) {
        let first = rest.chars().next().unwrap_or(' ');
        let length = if first.is_ascii_whitespace() {
            1
        } else if first == '"' || first == '\'' {
            let (text, length) = lex_text(rest, first, at)?;
            tokens.push((Token::Text(text), at));
            length
        } else if first.is_ascii_digit() {
            let length = rest.bytes().take_while(u8::is_ascii_digit).count();
            let number = rest[..length]
                .parse()
                .map_err(|_| refusal(format!("the number at column {} is too large", at + 1)))?;
            tokens.push((Token::Integer(number), at));
            length
        } else if first.is_ascii_alphabetic() || first == '_' {
            let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
            let length = rest.bytes().take_while(is_part).count();
            tokens.push((Token::Name(rest[..length].to_owned()), at));
            length
        } else if let Some(symbol) = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
            tokens.push((Token::Symbol(symbol), at));
            symbol.len()
        } else {
            return Err(refusal(format!(
                "there is an unexpected character at column {}",
                at + 1
            )));
        };
        at += length;
    }
    tokens.push((Token::End, source.len()));
    Ok(tokens)
}

/// A quoted text at the start of `rest`, and its length in bytes with the quotes.
fn lex_text(rest: &str, quote: char, at: usize) -> Result<(String, usize), Refusal> {
    let mut text = String::new();
    let mut characters = rest.char_indices().skip(1);
    while let Some((index, character)) = characters.next() {
        match character {
            _ if character == quote => return Ok((text, index + 1)),
            '\\' => match characters.next() {
                Some((_, escaped @ ('\\' | '"' | '\''))) => text.push(escaped),
                Some((_, 'n')) => text.push('\n'),
                Some((_, 'r')) => text.push('\r'),
                Some((_, 't')) => text.push('\t'),
                _ => {
                    return Err(refusal(format!(
                        "the string at column {} has an unknown escape",
                        at + 1
                    )));
                }
            },
            _ => text.push(character),
        }
    }
    Err(refusal(format!(
        "the string at column {} is not terminated",
        at + 1
    )))
}

/// A checked expression.
#[derive(Debug)]
enum Expr {
    Bool(bool),
    Integer(i64),
    Text(String),
    Time(Timestamp),
    Null,
    List(Vec<Expr>),
    Field(Field),
    Size(Box<Expr>),
    Not(Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Compare(Relation, Box<Expr>, Box<Expr>),
    In(Box<Expr>, Box<Expr>),
    Match(Match, Box<Expr>, Box<Expr>),
}

impl Expr {
    /// Counts its parts and the fields that it refers to.
    fn count(&self, n_parts: &mut u64, named: &mut Vec<(Field, u64)>) {
        *n_parts += 1;
        match self {
            Self::Field(field) => match named.iter_mut().find(|(one, _)| one.name == field.name) {
                Some((_, times)) => *times += 1,
                None => named.push((*field, 1)),
            },
            Self::List(items) => items.iter().for_each(|item| item.count(n_parts, named)),
            Self::Size(inner) | Self::Not(inner) => inner.count(n_parts, named),
            Self::And(a, b)
            | Self::Or(a, b)
            | Self::Compare(_, a, b)
            | Self::In(a, b)
            | Self::Match(_, a, b) => {
                a.count(n_parts, named);
                b.count(n_parts, named);
            }
            Self::Bool(_) | Self::Integer(_) | Self::Text(_) | Self::Time(_) | Self::Null => {}
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Less,
    LessEqual,
    Equal,
    NotEqual,
    GreaterEqual,
    Greater,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Match {
    StartsWith,
    EndsWith,
    Contains,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Bool,
    Integer,
    Text,
    Id,
    Time,
    Null,
    List,
}

type Typed = (Expr, Type);

struct Parser {
    tokens: Vec<(Token, usize)>,
    next: usize,
    fields: &'static [Field],
    now: Timestamp,
    n_conditions: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens
            .get(self.next)
            .map_or(&Token::End, |(token, _)| token)
    }

    fn at(&self) -> usize {
        self.tokens.get(self.next).map_or(0, |(_, at)| *at)
    }

    fn take(&mut self, symbol: &'static str) -> bool {
        let found = self.peek() == &Token::Symbol(symbol);
        if found {
            self.next += 1;
        }
        found
    }

    fn expect(&mut self, symbol: &'static str) -> Result<(), Refusal> {
        if self.take(symbol) {
            Ok(())
        } else {
            Err(self.unexpected(&format!("`{symbol}`")))
        }
    }

    fn unexpected(&self, wanted: &str) -> Refusal {
        refusal(format!("column {} should be {wanted}", self.at() + 1))
    }

    fn deeper(&mut self) -> Result<(), Refusal> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(refusal(format!(
                "it is nested deeper than {DEPTH_MAX} levels"
            )));
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), Refusal> {
        self.n_conditions += 1;
        if self.n_conditions > CONDITIONS_MAX {
            return Err(refusal(format!(
                "it has more than {CONDITIONS_MAX} conditions"
            )));
        }
        Ok(())
    }

    fn or(&mut self) -> Result<Typed, Refusal> {
        let at = self.at();
        let mut left = self.and()?;
        while self.take("||") {
            let right_at = self.at();
            let right = self.and()?;
            let (a, b) = (condition(left, at)?, condition(right, right_at)?);
            left = (Expr::Or(Box::new(a), Box::new(b)), Type::Bool);
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Typed, Refusal> {
        let at = self.at();
        let mut left = self.relation()?;
        while self.take("&&") {
            let right_at = self.at();
            let right = self.relation()?;
            let (a, b) = (condition(left, at)?, condition(right, right_at)?);
            left = (Expr::And(Box::new(a), Box::new(b)), Type::Bool);
        }
        Ok(left)
    }

    fn relation(&mut self) -> Result<Typed, Refusal> {
        self.count()?;
        let left = self.unary()?;
        let at = self.at();
        let relation = match self.peek() {
            Token::Symbol("<") => Relation::Less,
            Token::Symbol("<=") => Relation::LessEqual,
            Token::Symbol("==") => Relation::Equal,
            Token::Symbol("!=") => Relation::NotEqual,
            Token::Symbol(">=") => Relation::GreaterEqual,
            Token::Symbol(">") => Relation::Greater,
            Token::Name(name) if name == "in" => {
                self.next += 1;
                let (left, right) = spoken(left, self.unary()?);
                if right.1 != Type::List || matches!(left.1, Type::List | Type::Null) {
                    return Err(refusal(format!(
                        "`in` at column {} requires a value and a list",
                        at + 1
                    )));
                }
                return Ok((Expr::In(Box::new(left.0), Box::new(right.0)), Type::Bool));
            }
            _ => return Ok(left),
        };
        self.next += 1;
        let (left, right) = spoken(left, self.unary()?);
        if !comparable(relation, left.1, right.1) {
            return Err(refusal(format!(
                "the operands at column {} cannot be compared; compare times with `timestamp()`",
                at + 1
            )));
        }
        let compared = Expr::Compare(relation, Box::new(left.0), Box::new(right.0));
        Ok((compared, Type::Bool))
    }

    fn unary(&mut self) -> Result<Typed, Refusal> {
        let at = self.at();
        if self.take("!") {
            self.deeper()?;
            let inner = self.unary()?;
            self.depth -= 1;
            return Ok((Expr::Not(Box::new(condition(inner, at)?)), Type::Bool));
        }
        if self.take("-") {
            if let Token::Integer(number) = *self.peek() {
                self.next += 1;
                return Ok((Expr::Integer(-number), Type::Integer));
            }
            return Err(self.unexpected("a number"));
        }
        self.primary()
    }

    fn primary(&mut self) -> Result<Typed, Refusal> {
        match self.peek().clone() {
            Token::Text(text) => {
                self.next += 1;
                Ok((Expr::Text(text), Type::Text))
            }
            Token::Integer(number) => {
                self.next += 1;
                Ok((Expr::Integer(number), Type::Integer))
            }
            Token::Symbol("(") => {
                self.next += 1;
                self.deeper()?;
                let inner = self.or()?;
                self.depth -= 1;
                self.expect(")")?;
                Ok(inner)
            }
            Token::Symbol("[") => {
                self.next += 1;
                self.deeper()?;
                let mut items = Vec::new();
                while !self.take("]") {
                    if !items.is_empty() {
                        self.expect(",")?;
                    }
                    let (item, kind) = self.unary()?;
                    if matches!(kind, Type::List | Type::Null) {
                        return Err(self.unexpected("a list of literals"));
                    }
                    items.push(item);
                }
                self.depth -= 1;
                Ok((Expr::List(items), Type::List))
            }
            Token::Name(name) => {
                self.next += 1;
                self.named(&name)
            }
            _ => Err(self.unexpected("a value")),
        }
    }

    fn named(&mut self, name: &str) -> Result<Typed, Refusal> {
        match name {
            "true" => Ok((Expr::Bool(true), Type::Bool)),
            "false" => Ok((Expr::Bool(false), Type::Bool)),
            "null" => Ok((Expr::Null, Type::Null)),
            "obj" => self.field(),
            "size" => {
                self.expect("(")?;
                self.deeper()?;
                let (inner, kind) = self.unary()?;
                self.depth -= 1;
                if !matches!(kind, Type::Text | Type::Id | Type::List) {
                    return Err(self.unexpected("a string or a list in `size`"));
                }
                self.expect(")")?;
                Ok((Expr::Size(Box::new(inner)), Type::Integer))
            }
            "timestamp" => self.timestamp(),
            _ => Err(refusal(format!(
                "`{name}` is unknown; use fields as `obj.…` and the functions size, timestamp, startsWith, endsWith and contains"
            ))),
        }
    }

    /// Parses what follows `obj`: a field and, optionally, a string function.
    fn field(&mut self) -> Result<Typed, Refusal> {
        let mut path = String::new();
        let mut found: Option<Field> = None;
        while self.take(".") {
            let Token::Name(name) = self.peek().clone() else {
                return Err(self.unexpected("a field name"));
            };
            if let (Some(field), Some(function)) = (found, matching(&name)) {
                self.next += 1;
                return self.string_function(field, function);
            }
            self.next += 1;
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(&name);
            found = self.lookup(&path);
        }
        let Some(field) = found else {
            let names: Vec<_> = self.fields.iter().map(|field| field.name).collect();
            return Err(refusal(format!(
                "filters cannot use `obj.{path}`; valid fields: {}",
                names.join(", ")
            )));
        };
        Ok((Expr::Field(field), type_of(field.shape)))
    }

    fn lookup(&self, path: &str) -> Option<Field> {
        let by_name = |name: &str| self.fields.iter().find(|field| field.name == name);
        by_name(path)
            .or_else(|| {
                let name = path.strip_suffix(".id")?;
                by_name(name).filter(|field| matches!(field.shape, Shape::Reference | Shape::Link))
            })
            .copied()
    }

    fn string_function(&mut self, field: Field, function: Match) -> Result<Typed, Refusal> {
        if type_of(field.shape) != Type::Text {
            return Err(refusal(format!(
                "`obj.{}` does not support string functions",
                field.name
            )));
        }
        self.expect("(")?;
        let (argument, kind) = self.unary()?;
        if kind != Type::Text {
            return Err(self.unexpected("a text"));
        }
        self.expect(")")?;
        let call = Expr::Match(function, Box::new(Expr::Field(field)), Box::new(argument));
        Ok((call, Type::Bool))
    }

    /// Parses what follows `timestamp`.
    fn timestamp(&mut self) -> Result<Typed, Refusal> {
        self.expect("(")?;
        let mut moment = match self.peek().clone() {
            Token::Text(text) => {
                self.next += 1;
                Timestamp::parse(&text)
                    .ok_or_else(|| refusal(format!("`{text}` is not an RFC 3339 time")))?
            }
            Token::Name(name) if name == "time" => {
                self.next += 1;
                self.expect(".")?;
                if self.peek() != &Token::Name("now".to_owned()) {
                    return Err(self.unexpected("`now`"));
                }
                self.next += 1;
                self.now
            }
            _ => return Err(self.unexpected("a string or `time.now`")),
        };
        self.expect(")")?;
        while self.take(".") {
            let Token::Name(name) = self.peek().clone() else {
                return Err(self.unexpected("`add` or `subtract`"));
            };
            self.next += 1;
            self.expect("(")?;
            let Token::Text(text) = self.peek().clone() else {
                return Err(self.unexpected("a duration such as \"7d\""));
            };
            self.next += 1;
            self.expect(")")?;
            let by = duration(&text).ok_or_else(|| {
                refusal(format!(
                    "`{text}` is not a duration such as \"7d\" or \"24h\""
                ))
            })?;
            moment = match name.as_str() {
                "add" => moment.plus(by),
                "subtract" => moment.minus(by),
                _ => return Err(refusal(format!("a time has no function `{name}`"))),
            };
        }
        Ok((Expr::Time(moment), Type::Time))
    }
}

/// Both sides of a comparison. Compared with the type of an endpoint, `agent` is replaced with `ephemeral`.
fn spoken(mut left: Typed, mut right: Typed) -> (Typed, Typed) {
    let is_type =
        |side: &Typed| matches!(&side.0, Expr::Field(field) if field.shape == Shape::EndpointType);
    if is_type(&left) {
        respell(&mut right.0);
    } else if is_type(&right) {
        respell(&mut left.0);
    }
    (left, right)
}

fn respell(expr: &mut Expr) {
    match expr {
        Expr::Text(text) if text == "agent" => "ephemeral".clone_into(text),
        Expr::List(items) => items.iter_mut().for_each(respell),
        _ => {}
    }
}

fn condition((expr, kind): Typed, at: usize) -> Result<Expr, Refusal> {
    match kind {
        Type::Bool => Ok(expr),
        _ => Err(refusal(format!("column {} should be a condition", at + 1))),
    }
}

fn comparable(relation: Relation, a: Type, b: Type) -> bool {
    use Type::{Id, Integer, List, Null, Text, Time};
    let equality = matches!(relation, Relation::Equal | Relation::NotEqual);
    match (a, b) {
        (Null, _) | (_, Null) | (List, List | Text) | (Text, List) => equality,
        (Type::Bool, Type::Bool) => equality,
        (Integer, Integer) | (Time, Time) | (Text | Id, Text | Id) => true,
        _ => false,
    }
}

fn type_of(shape: Shape) -> Type {
    match shape {
        Shape::Text | Shape::Within(_) | Shape::First(_) | Shape::EndpointType => Type::Text,
        Shape::Id | Shape::Reference | Shape::Link => Type::Id,
        Shape::Time => Type::Time,
        Shape::Flag => Type::Bool,
        Shape::List => Type::List,
    }
}

fn matching(name: &str) -> Option<Match> {
    match name {
        "startsWith" => Some(Match::StartsWith),
        "endsWith" => Some(Match::EndsWith),
        "contains" => Some(Match::Contains),
        _ => None,
    }
}

/// Parses `7d`, `24h` or `1h30m`.
fn duration(text: &str) -> Option<Duration> {
    let mut seconds = 0u64;
    let mut number = None;
    for character in text.chars() {
        if let Some(digit) = character.to_digit(10) {
            let so_far: u64 = number.unwrap_or(0);
            number = Some(so_far.checked_mul(10)?.checked_add(u64::from(digit))?);
        } else {
            let unit = match character {
                's' => 1,
                'm' => 60,
                'h' => 3600,
                'd' => 86_400,
                _ => return None,
            };
            seconds = seconds.checked_add(number.take()?.checked_mul(unit)?)?;
        }
    }
    (number.is_none() && !text.is_empty()).then(|| Duration::from_secs(seconds))
}

/// The value of an expression for one object.
#[derive(Debug)]
enum Held<'v> {
    Bool(bool),
    Integer(i64),
    /// Empty if unset.
    Text(&'v str),
    /// `None` if unset.
    Time(Option<Timestamp>),
    Null,
    /// A list of the object; empty if unset.
    Stored(&'v [Json]),
    Literal(&'v [Expr]),
}

fn truth(expr: &Expr, object: &Json) -> bool {
    match expr {
        Expr::Not(inner) => !truth(inner, object),
        Expr::And(a, b) => truth(a, object) && truth(b, object),
        Expr::Or(a, b) => truth(a, object) || truth(b, object),
        Expr::Compare(relation, a, b) => {
            compare(*relation, &hold(a, object), &hold(b, object), object)
        }
        Expr::In(value, list) => contains(&hold(list, object), &hold(value, object), object),
        Expr::Match(function, text, part) => match (hold(text, object), hold(part, object)) {
            (Held::Text(text), Held::Text(part)) => match function {
                Match::StartsWith => text.starts_with(part),
                Match::EndsWith => text.ends_with(part),
                Match::Contains => text.contains(part),
            },
            _ => false,
        },
        other => matches!(hold(other, object), Held::Bool(true)),
    }
}

fn hold<'v>(expr: &'v Expr, object: &'v Json) -> Held<'v> {
    match expr {
        Expr::Integer(number) => Held::Integer(*number),
        Expr::Text(text) => Held::Text(text),
        Expr::Time(at) => Held::Time(Some(*at)),
        Expr::Null => Held::Null,
        Expr::List(items) => Held::Literal(items),
        Expr::Field(field) => hold_field(*field, object),
        Expr::Size(inner) => Held::Integer(size(&hold(inner, object))),
        Expr::Bool(flag) => Held::Bool(*flag),
        condition => Held::Bool(truth(condition, object)),
    }
}

fn hold_field(field: Field, object: &Json) -> Held<'_> {
    let value = || {
        field
            .name
            .split('.')
            .try_fold(object, |inner, name| inner.get(name))
    };
    match field.shape {
        Shape::Text | Shape::Within(_) | Shape::Id | Shape::EndpointType => {
            Held::Text(text(value()))
        }
        Shape::Reference | Shape::Link => {
            Held::Text(text(value().and_then(|value| value.get("id"))))
        }
        Shape::Time => Held::Time(Timestamp::parse(text(value()))),
        Shape::Flag => Held::Bool(value().and_then(Json::as_bool).unwrap_or(false)),
        Shape::List => Held::Stored(value().and_then(Json::as_array).map_or(&[], Vec::as_slice)),
        Shape::First(list) => Held::Text(text(object.get(list).and_then(|list| list.get(0)))),
    }
}

/// A text of the object; empty if unset.
fn text(value: Option<&Json>) -> &str {
    value.and_then(Json::as_str).unwrap_or_default()
}

fn size(held: &Held<'_>) -> i64 {
    let size = match held {
        Held::Text(text) => text.chars().count(),
        Held::Stored(items) => items.len(),
        Held::Literal(items) => items.len(),
        _ => 0,
    };
    i64::try_from(size).unwrap_or(i64::MAX)
}

fn is_unset(held: &Held<'_>) -> bool {
    match held {
        Held::Text(text) => text.is_empty(),
        Held::Stored(items) => items.is_empty(),
        Held::Literal(items) => items.is_empty(),
        Held::Time(at) => at.is_none(),
        Held::Null => true,
        Held::Bool(_) | Held::Integer(_) => false,
    }
}

fn compare(relation: Relation, a: &Held<'_>, b: &Held<'_>, object: &Json) -> bool {
    use std::cmp::Ordering;
    let ordering = match (a, b) {
        (Held::Integer(a), Held::Integer(b)) => Some(a.cmp(b)),
        (Held::Text(a), Held::Text(b)) => Some(a.cmp(b)),
        (Held::Time(Some(a)), Held::Time(Some(b))) => Some(a.cmp(b)),
        _ => None,
    };
    match (relation, ordering) {
        (Relation::Equal, _) => equal(a, b, object),
        (Relation::NotEqual, _) => !equal(a, b, object),
        (Relation::Less, Some(ordering)) => ordering == Ordering::Less,
        (Relation::LessEqual, Some(ordering)) => ordering != Ordering::Greater,
        (Relation::GreaterEqual, Some(ordering)) => ordering != Ordering::Less,
        (Relation::Greater, Some(ordering)) => ordering == Ordering::Greater,
        // An unset time is neither before nor after another.
        (_, None) => false,
    }
}

fn equal(a: &Held<'_>, b: &Held<'_>, object: &Json) -> bool {
    match (a, b) {
        (Held::Bool(a), Held::Bool(b)) => a == b,
        (Held::Integer(a), Held::Integer(b)) => a == b,
        (Held::Text(a), Held::Text(b)) => a == b,
        (Held::Time(a), Held::Time(b)) => a == b,
        (Held::Stored(_) | Held::Literal(_), Held::Stored(_) | Held::Literal(_)) => {
            let (a, b) = (items(a, object), items(b, object));
            a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| equal(a, b, object))
        }
        _ => is_unset(a) && is_unset(b),
    }
}

fn contains(list: &Held<'_>, value: &Held<'_>, object: &Json) -> bool {
    items(list, object)
        .iter()
        .any(|item| equal(item, value, object))
}

fn items<'v>(list: &Held<'v>, object: &'v Json) -> Vec<Held<'v>> {
    match list {
        Held::Literal(items) => items.iter().map(|item| hold(item, object)).collect(),
        Held::Stored(items) => items
            .iter()
            .map(|item| match item {
                Json::String(text) => Held::Text(text),
                Json::Bool(flag) => Held::Bool(*flag),
                Json::Number(number) => Held::Integer(number.as_i64().unwrap_or(i64::MAX)),
                _ => Held::Null,
            })
            .collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
