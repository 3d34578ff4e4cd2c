//! One span: a step of a request, with its begin and end.

use tokio::time::Instant;

use crate::context::SpanId;

/// Longest text of an attribute, in bytes. Clients choose paths and names.
const TEXT_BYTES_MAX: usize = 1_024;
/// Bytes of memory that a span and an attribute occupy besides texts, roughly.
const SPAN_BYTES: usize = 160;
const ATTRIBUTE_BYTES: usize = 48;

/// Whose work a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// A request that the edge serves.
    Server,
    /// A request that it sends.
    Client,
    /// A step of the edge itself.
    Internal,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
    /// Yes or no.
    Flag(bool),
    /// Several texts.
    Texts(Vec<String>),
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        Self::Text(text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned())
    }
}

impl From<i64> for AttributeValue {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<u16> for AttributeValue {
    fn from(number: u16) -> Self {
        Self::Number(number.into())
    }
}

impl From<bool> for AttributeValue {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl AttributeValue {
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Texts(texts) => texts.iter().map(|text| text.len() + 24).sum(),
            Self::Number(_) | Self::Flag(_) => 0,
        }
    }
}

/// A step of a request.
#[derive(Clone, Debug)]
pub struct Span {
    /// Its ID.
    pub span_id: SpanId,
    /// The span that it is part of; `None` if it begins the trace.
    pub parent: Option<SpanId>,
    /// What it does: of few different names.
    pub name: String,
    /// Whose work it is.
    pub kind: SpanKind,
    /// When it began.
    pub began: Instant,
    /// When it ended.
    pub ended: Instant,
    /// What else is known of it.
    pub attributes: Vec<(&'static str, AttributeValue)>,
    /// Whether it failed.
    pub has_failed: bool,
}

impl Span {
    /// Adds an attribute.
    pub fn set(&mut self, name: &'static str, value: impl Into<AttributeValue>) {
        self.attributes.push((name, value.into()));
    }

    /// Bytes of memory that it occupies, roughly.
    pub(crate) fn bytes(&self) -> usize {
        let attributes = self.attributes.iter();
        let attributes = attributes.map(|(_, value)| ATTRIBUTE_BYTES + value.bytes());
        SPAN_BYTES + self.name.len() + attributes.sum::<usize>()
    }
}
