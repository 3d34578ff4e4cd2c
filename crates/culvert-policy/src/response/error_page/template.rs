//! Text with placeholders.

use culvert_events::Reason;
use http::StatusCode;

/// Bytes that the values of a page usually need.
const VALUES_BYTES: usize = 768;

/// A page with placeholders.
#[derive(Debug, Default)]
pub(crate) struct Template {
    pieces: Vec<Piece>,
    /// Bytes of all text pieces.
    text_bytes: usize,
}

#[derive(Debug)]
enum Piece {
    Text(Box<str>),
    Value(Placeholder),
}

/// The values that a page shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageValues<'a> {
    pub(crate) status: StatusCode,
    /// The title of a page; that of the status if it is empty.
    pub(crate) reason: &'static str,
    /// The number of the error code; responses that a traffic policy configures have none.
    pub(crate) code: Option<u16>,
    pub(crate) request_id: &'a str,
    /// The host as the client sent it, which may be any text.
    pub(crate) host: &'a str,
    pub(crate) message: &'static str,
    pub(crate) advice: &'static str,
    pub(crate) owner_help: &'static str,
    /// Why the edge responds; decisions of a traffic policy have none.
    pub(crate) cause: Option<Reason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placeholder {
    Status,
    Reason,
    Code,
    RequestId,
    Host,
    Message,
    Advice,
    OwnerHelp,
    Cause,
}

const PLACEHOLDERS: [(&str, Placeholder); 9] = [
    ("status", Placeholder::Status),
    ("reason", Placeholder::Reason),
    ("code", Placeholder::Code),
    ("request_id", Placeholder::RequestId),
    ("host", Placeholder::Host),
    ("message", Placeholder::Message),
    ("advice", Placeholder::Advice),
    ("owner_help", Placeholder::OwnerHelp),
    ("cause", Placeholder::Cause),
];

/// A template has an invalid placeholder.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// No placeholder has this name.
    #[error(
        "line {line}: unknown placeholder `{{{{{name}}}}}`; known are status, reason, code, request_id, host, message, advice, owner_help and cause"
    )]
    Unknown {
        /// Where.
        line: usize,
        /// At most 40 characters of it.
        name: String,
    },
    /// A placeholder does not end.
    #[error("line {line}: `{{{{` without `}}}}`")]
    Open {
        /// Where.
        line: usize,
    },
}

impl Template {
    /// Reads a template. `{{` always begins a placeholder.
    pub(crate) fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut template = Self::default();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            let line = || 1 + text[..text.len() - after.len()].matches('\n').count();
            let Some((name, next)) = after.split_once("}}") else {
                return Err(TemplateError::Open { line: line() });
            };
            let known = PLACEHOLDERS.iter().find(|(known, _)| *known == name.trim());
            let Some((_, placeholder)) = known else {
                return Err(TemplateError::Unknown {
                    line: line(),
                    name: name.chars().take(40).collect(),
                });
            };
            template.push(before);
            template.pieces.push(Piece::Value(*placeholder));
            rest = next;
        }
        template.push(rest);
        Ok(template)
    }

    fn push(&mut self, text: &str) {
        self.text_bytes += text.len();
        self.pieces.push(Piece::Text(text.into()));
    }

    /// The page with these values.
    pub(crate) fn render(&self, values: &PageValues<'_>) -> String {
        let mut page = String::with_capacity(self.text_bytes + VALUES_BYTES);
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => page.push_str(text),
                Piece::Value(placeholder) => values.push(*placeholder, &mut page),
            }
        }
        page
    }
}

impl PageValues<'_> {
    fn push(&self, placeholder: Placeholder, page: &mut String) {
        match placeholder {
            Placeholder::Status => page.push_str(self.status.as_str()),
            Placeholder::Reason if self.reason.is_empty() => {
                page.push_str(self.status.canonical_reason().unwrap_or("Error"));
            }
            Placeholder::Reason => escape(self.reason, page),
            Placeholder::Code => {
                if let Some(number) = self.code {
                    page.push_str("ERR_NGROK_");
                    page.push_str(&number.to_string());
                }
            }
            Placeholder::RequestId => escape(self.request_id, page),
            Placeholder::Host => escape(self.host, page),
            Placeholder::Message => prose(self.message, page),
            Placeholder::Advice => prose(self.advice, page),
            Placeholder::OwnerHelp => prose(self.owner_help, page),
            Placeholder::Cause => {
                if let Some(cause) = self.cause {
                    prose(cause.doc(), page);
                    prose(&format!(" (`{}`)", cause.name()), page);
                }
            }
        }
    }
}

/// Appends a text of this program, in which `` ` `` surrounds code.
fn prose(text: &str, page: &mut String) {
    for (index, part) in text.split('`').enumerate() {
        match index % 2 {
            0 => escape(part, page),
            _ => {
                page.push_str("<code>");
                escape(part, page);
                page.push_str("</code>");
            }
        }
    }
}

/// Appends a text so that it is neither markup nor the end of a quoted attribute.
fn escape(text: &str, page: &mut String) {
    let mut from = 0;
    for (at, byte) in text.bytes().enumerate() {
        let entity = match byte {
            b'&' => "&amp;",
            b'<' => "&lt;",
            b'>' => "&gt;",
            b'"' => "&quot;",
            b'\'' => "&#39;",
            b'`' => "&#96;",
            _ => continue,
        };
        page.push_str(&text[from..at]);
        page.push_str(entity);
        from = at + 1;
    }
    page.push_str(&text[from..]);
}
