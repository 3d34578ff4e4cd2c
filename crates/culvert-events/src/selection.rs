//! The fields of a kind that a subscription receives, prepared for encoding.
//!
//! The constant parts of an event's JSON are encoded once, when the selection is made.
//! [`crate::encode`] only inserts values between them.

use std::ops::Range;

use culvert_base::Refusal;

use crate::capture::Capture;
use crate::catalogue::kind::EventKind;

/// A non-empty set of fields of one kind.
#[derive(Clone, Debug)]
pub struct Selection {
    kind: &'static EventKind,
    capture: Capture,
    named: Vec<&'static str>,
    /// The JSON between the id and the timestamp.
    head: Vec<u8>,
    template: Vec<u8>,
    parts: Vec<Part>,
}

/// A field, and its default in the template.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) unset: Range<usize>,
    pub(crate) field: usize,
}

impl Selection {
    /// Every field of `kind`.
    pub fn all(kind: &'static EventKind) -> Self {
        Self::new(kind, Capture::all(kind), Vec::new())
    }

    /// The fields of `kind` that a subscription gets which names none.
    pub fn usual(kind: &'static EventKind) -> Self {
        Self::new(kind, Capture::usual(kind), Vec::new())
    }

    /// The fields with these exact paths, or the usual ones if the list is empty.
    ///
    /// # Errors
    /// 5403 with the first path that is not a field of `kind`. A parent such as `conn` is not a
    /// field.
    pub fn parse<S: AsRef<str>>(kind: &'static EventKind, fields: &[S]) -> Result<Self, Refusal> {
        if fields.is_empty() {
            return Ok(Self::usual(kind));
        }
        let mut capture = Capture::NONE;
        let mut named = Vec::new();
        for field in fields {
            let path = field.as_ref();
            let index = kind.index_of(path).ok_or_else(|| kind.no_field(path))?;
            if !capture.has_index(index) {
                capture = capture.with_index(index);
                named.push(kind.fields[index].path);
            }
        }
        Ok(Self::new(kind, capture, named))
    }

    /// The kind it selects from.
    pub fn kind(&self) -> &'static EventKind {
        self.kind
    }

    /// The fields that must be captured for it.
    pub fn capture(&self) -> Capture {
        self.capture
    }

    /// The paths that it was made from, without duplicates, in the given order; empty if it was
    /// made from an empty list. This is stored and shown.
    pub fn named(&self) -> &[&'static str] {
        &self.named
    }

    fn new(kind: &'static EventKind, capture: Capture, named: Vec<&'static str>) -> Self {
        let mut template = br#"","principal":null,"object":{"#.to_vec();
        let mut parts = Vec::new();
        let mut open: Vec<&str> = Vec::new();
        for (index, field) in kind.fields.iter().enumerate() {
            if !capture.has_index(index) {
                continue;
            }
            let mut parents: Vec<&str> = field.path.split('.').collect();
            let leaf = parents.pop().unwrap_or_default();
            let shared = open
                .iter()
                .zip(&parents)
                .take_while(|(a, b)| a == b)
                .count();
            template.extend(open.drain(shared..).map(|_| b'}'));
            if !parts.is_empty() {
                template.push(b',');
            }
            for parent in &parents[shared..] {
                template.extend_from_slice(format!("\"{parent}\":{{").as_bytes());
            }
            template.extend_from_slice(format!("\"{leaf}\":").as_bytes());
            open = parents;
            let start = template.len();
            template.extend_from_slice(field.unset.as_bytes());
            parts.push(Part {
                unset: start..template.len(),
                field: index,
            });
        }
        template.extend(open.iter().map(|_| b'}'));
        template.extend_from_slice(b"}}");
        Self {
            kind,
            capture,
            named,
            head: format!(r#"","event_type":"{}","event_timestamp":""#, kind.name).into(),
            template,
            parts,
        }
    }

    /// The JSON between the id of the event and its timestamp.
    pub(crate) fn head(&self) -> &[u8] {
        &self.head
    }

    /// The JSON after the account for a record whose selected fields are all unset, and the
    /// positions of the fields in it.
    pub(crate) fn template(&self) -> (&[u8], &[Part]) {
        (&self.template, &self.parts)
    }
}

/// Equal if the same fields are encoded in the same way.
impl PartialEq for Selection {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.capture == other.capture && self.named == other.named
    }
}

impl Eq for Selection {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HTTP_REQUEST_COMPLETE, TCP_CONNECTION_CLOSED, kinds};

    #[test]
    fn without_names_it_has_the_fields_that_need_none() {
        let usual = Selection::parse::<&str>(&HTTP_REQUEST_COMPLETE, &[]).unwrap();
        assert_eq!(usual, Selection::usual(&HTTP_REQUEST_COMPLETE));
        assert_eq!(usual.named(), &[] as &[&str]);
        assert_eq!(usual.parts.len(), 34);
        let template = std::str::from_utf8(&usual.template).unwrap();
        assert!(!template.contains("culvert"), "{template}");
        let all = Selection::all(&HTTP_REQUEST_COMPLETE);
        assert_eq!(all.parts.len(), HTTP_REQUEST_COMPLETE.fields.len());
        let own = ["culvert.reason", "culvert.sampled"];
        let own = Selection::parse(&TCP_CONNECTION_CLOSED, &own).unwrap();
        assert_eq!(
            std::str::from_utf8(&own.template).unwrap(),
            r#"","principal":null,"object":{"culvert":{"reason":"","sampled":1}}}"#
        );
    }

    #[test]
    fn names_keep_their_order_and_repeated_ones_their_first_place() {
        let fields = [
            "http.request.method",
            "conn.client_ip",
            "http.request.method",
        ];
        let selection = Selection::parse(&HTTP_REQUEST_COMPLETE, &fields).unwrap();
        assert_eq!(
            selection.named(),
            &["http.request.method", "conn.client_ip"]
        );
        assert_eq!(
            std::str::from_utf8(&selection.template).unwrap(),
            r#"","principal":null,"object":{"conn":{"client_ip":""},"http":{"request":{"method":""}}}}"#
        );
    }

    #[test]
    fn what_is_no_field_is_refused_by_name() {
        for (kind, name) in [
            (&HTTP_REQUEST_COMPLETE, "conn"),
            (&HTTP_REQUEST_COMPLETE, "conn.*"),
            (&HTTP_REQUEST_COMPLETE, "conn.bytes_in"),
            (&HTTP_REQUEST_COMPLETE, "Conn.client_ip"),
            (&HTTP_REQUEST_COMPLETE, " conn.client_ip"),
            (&HTTP_REQUEST_COMPLETE, ""),
            (&TCP_CONNECTION_CLOSED, "http.request.method"),
        ] {
            let refusal = Selection::parse(kind, &["conn.client_ip", name]).unwrap_err();
            assert_eq!(refusal.code.unwrap().number(), 5403);
            assert!(refusal.message.contains(&format!("{name:?}")), "{refusal}");
            assert!(refusal.message.contains(kind.name), "{refusal}");
        }
    }

    #[test]
    fn every_field_can_be_selected_alone() {
        for kind in kinds::ALL {
            for field in kind.fields {
                let selection = Selection::parse(kind, &[field.path]).unwrap();
                let depth = field.path.split('.').count();
                assert!(
                    selection.template.ends_with(&vec![b'}'; depth + 1]),
                    "{}",
                    field.path
                );
            }
        }
    }
}
