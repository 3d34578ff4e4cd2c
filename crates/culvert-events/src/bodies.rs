//! Messages captured beside an event: the head and the body of a request and of its response.
//!
//! The plane that carries the traffic copies bytes into a [`BodyBuffer`] and attaches a [`CapturedExchange`] to the
//! record. All buffers share a [`BodyBudget`]; a buffer that exhausts it stops copying, so traffic never waits.
//! Delivery calls [`CapturedExchange::finish`], which redacts the messages, and stores the result.
//!
//! Not here: the rules of capture and redaction (policies), and storage (delivery).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

use crate::headers::HeaderRules;

/// The memory that all captured messages may use, until they are stored.
#[derive(Debug)]
pub struct BodyBudget {
    bytes_max: usize,
    used: AtomicUsize,
    skipped: AtomicU64,
}

impl BodyBudget {
    /// A budget of this many bytes.
    pub fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            used: AtomicUsize::new(0),
            skipped: AtomicU64::new(0),
        })
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Messages and bodies that were omitted because the budget was used up, since the start.
    pub fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    /// Counts a message that was not captured.
    pub fn skip(&self) {
        self.skipped.fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self, bytes: usize) -> bool {
        let taken = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= self.bytes_max)
            });
        taken.is_ok()
    }
}

/// A share of a budget, until it is dropped.
pub struct BodyShare {
    budget: Arc<BodyBudget>,
    bytes: usize,
}

impl BodyShare {
    /// An empty share.
    pub fn new(budget: &Arc<BodyBudget>) -> Self {
        Self {
            budget: Arc::clone(budget),
            bytes: 0,
        }
    }

    /// Takes further bytes. False if the budget has no more.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let is_taken = self.budget.take(bytes);
        if is_taken {
            self.bytes += bytes;
        }
        is_taken
    }

    /// Adds another share.
    pub fn merge(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl fmt::Debug for BodyShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BodyShare").field(&self.bytes).finish()
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Why a message has no body, or only its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BodyOmission {
    /// Its content type is not captured.
    ContentType,
    /// The memory for captures was used up.
    Memory,
    /// It cannot be redacted: it is incomplete, in an unknown coding, or no text.
    Redaction,
}

/// A body that is being copied.
#[derive(Debug)]
pub struct BodyBuffer {
    bytes: Vec<u8>,
    share: BodyShare,
    bytes_max: usize,
    length: u64,
    trailers: Vec<Field>,
    is_complete: bool,
    omitted: Option<BodyOmission>,
}

impl BodyBuffer {
    /// A buffer for at most this many bytes.
    pub fn new(budget: &Arc<BodyBudget>, bytes_max: usize) -> Self {
        Self {
            bytes: Vec::new(),
            share: BodyShare::new(budget),
            bytes_max,
            length: 0,
            trailers: Vec::new(),
            is_complete: false,
            omitted: None,
        }
    }

    /// Changes the limit, and discards bytes beyond it. With `omitted`, discards all bytes and copies no more.
    pub fn limit(&mut self, bytes_max: usize, omitted: Option<BodyOmission>) {
        self.bytes_max = bytes_max;
        if omitted.is_some() {
            self.omitted = omitted;
            self.bytes = Vec::new();
        } else {
            self.bytes.truncate(bytes_max);
        }
    }

    /// Copies the next bytes, as far as the limits allow.
    pub fn push(&mut self, data: &[u8]) {
        self.length = self.length.saturating_add(data.len() as u64);
        if self.omitted.is_some() {
            return;
        }
        let wanted = data.len().min(self.bytes_max - self.bytes.len());
        let needed = self.bytes.len() + wanted;
        let capacity = self.bytes.capacity();
        if needed > capacity {
            // Doubles the capacity, so that bytes are rarely moved, but never exceeds the limit.
            let larger = needed.max(capacity * 2).min(self.bytes_max);
            if !self.share.grow(larger - capacity) {
                self.share.budget.skip();
                self.omitted = Some(BodyOmission::Memory);
                return;
            }
            self.bytes.reserve_exact(larger - self.bytes.len());
        }
        self.bytes.extend_from_slice(&data[..wanted]);
    }

    /// Keeps trailer fields.
    pub fn trailers(&mut self, fields: impl Iterator<Item = Field>) {
        for field in fields {
            if self.share.grow(field.name.len() + field.value.len()) {
                self.trailers.push(field);
            }
        }
    }

    /// Marks the body as complete.
    pub fn complete(&mut self) {
        self.is_complete = true;
    }

    /// The body so far, and its share of the budget.
    pub fn finish(self) -> (CapturedBody, Vec<Field>, BodyShare) {
        let body = CapturedBody {
            is_truncated: !self.is_complete || (self.bytes.len() as u64) < self.length,
            bytes: self.bytes,
            length: self.length,
            is_redacted: false,
            omitted: self.omitted,
        };
        (body, self.trailers, self.share)
    }
}

/// A header or trailer field. The value has one character for each byte of a value that is not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// The name in lower case.
    pub name: String,
    /// The value as received.
    pub value: String,
    /// Whether the value, or a part of it, is replaced by `[redacted]`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_redacted: bool,
}

impl Field {
    /// A field as received.
    pub fn new(name: &str, value: &[u8]) -> Self {
        Self {
            name: name.to_owned(),
            value: match std::str::from_utf8(value) {
                Ok(text) => text.to_owned(),
                Err(_) => value.iter().map(|byte| char::from(*byte)).collect(),
            },
            is_redacted: false,
        }
    }

    /// Replaces the value.
    pub fn redact(&mut self) {
        "[redacted]".clone_into(&mut self.value);
        self.is_redacted = true;
    }
}

/// A captured body.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedBody {
    /// The bytes, in the content coding of the message.
    #[serde(skip)]
    pub bytes: Vec<u8>,
    /// The bytes that were transferred, before limits and redaction.
    pub length: u64,
    /// Whether `bytes` lacks the end: of a long body, or of a message that was aborted or rejected.
    pub is_truncated: bool,
    /// Whether parts are replaced by `[redacted]`. It is then stored without content coding.
    pub is_redacted: bool,
    /// Why bytes are missing, if for another reason than the limit.
    pub omitted: Option<BodyOmission>,
}

/// A captured request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedRequest {
    /// The method as received.
    pub method: String,
    /// Scheme, authority, path and query as received.
    pub url: String,
    /// Whether the query has a redacted value.
    pub is_url_redacted: bool,
    /// Header fields in wire order.
    pub headers: Vec<Field>,
    /// Trailer fields.
    pub trailers: Vec<Field>,
    /// The body.
    pub body: CapturedBody,
}

/// A captured response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedResponse {
    /// The status as sent.
    pub status_code: u16,
    /// Header fields.
    pub headers: Vec<Field>,
    /// Trailer fields.
    pub trailers: Vec<Field>,
    /// The body.
    pub body: CapturedBody,
}

/// The captured messages of an exchange, redacted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedMessages {
    /// IDs of the owners of the endpoints whose policies captured it.
    pub owners: Vec<String>,
    /// The request, if it was captured.
    pub request: Option<CapturedRequest>,
    /// The response, if it was captured and sent.
    pub response: Option<CapturedResponse>,
}

/// Removes what must not be stored.
pub trait Redact: fmt::Debug + Send + Sync {
    /// Redacts the messages in place, and adds the owner of the rules. `defaults` are the rules of the server, which also apply to events.
    fn redact(&self, messages: &mut CapturedMessages, defaults: &HeaderRules);
}

/// The captured messages of an exchange, before redaction.
#[derive(Debug)]
pub struct CapturedExchange {
    messages: CapturedMessages,
    rules: Vec<Arc<dyn Redact>>,
    defaults: Arc<HeaderRules>,
    share: BodyShare,
}

impl CapturedExchange {
    /// Messages with the rules of redaction, all of which apply, and their share of the budget.
    pub fn new(
        messages: CapturedMessages,
        rules: Vec<Arc<dyn Redact>>,
        defaults: Arc<HeaderRules>,
        share: BodyShare,
    ) -> Self {
        Self {
            messages,
            rules,
            defaults,
            share,
        }
    }

    /// Redacts the messages. Their memory counts until the share is dropped.
    pub fn finish(self) -> (CapturedMessages, BodyShare) {
        let mut messages = self.messages;
        for rules in &self.rules {
            rules.redact(&mut messages, &self.defaults);
        }
        (messages, self.share)
    }
}

/// The stored form is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

#[derive(Serialize, Deserialize)]
struct Stored<M> {
    messages: M,
    /// Bytes of the request's body, which come first.
    request_bytes: usize,
}

impl CapturedMessages {
    /// The stored form: the length of a JSON document, the document, and the bodies.
    pub fn encode(&self) -> Vec<u8> {
        let of_request = self.request.as_ref();
        let of_request = of_request.map_or(&[][..], |request| &request.body.bytes);
        let of_response = self.response.as_ref();
        let of_response = of_response.map_or(&[][..], |response| &response.body.bytes);
        let document = Stored {
            messages: self,
            request_bytes: of_request.len(),
        };
        let document = serde_json::to_vec(&document).unwrap_or_default();
        let length = u32::try_from(document.len()).unwrap_or(u32::MAX);
        let mut out = Vec::with_capacity(4 + document.len() + of_request.len() + of_response.len());
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&document);
        out.extend_from_slice(of_request);
        out.extend_from_slice(of_response);
        out
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`Malformed`] for any other bytes.
    pub fn decode(stored: &[u8]) -> Result<Self, Malformed> {
        let (length, rest) = stored.split_first_chunk().ok_or(Malformed)?;
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| Malformed)?;
        let (document, bodies) = rest.split_at_checked(length).ok_or(Malformed)?;
        let document: Stored<Self> = serde_json::from_slice(document).map_err(|_| Malformed)?;
        let bodies = bodies.split_at_checked(document.request_bytes);
        let (of_request, of_response) = bodies.ok_or(Malformed)?;
        let mut messages = document.messages;
        if let Some(request) = &mut messages.request {
            request.body.bytes = of_request.to_vec();
        }
        if let Some(response) = &mut messages.response {
            response.body.bytes = of_response.to_vec();
        }
        Ok(messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_keeps_the_beginning_within_its_limit() {
        let budget = BodyBudget::new(1000);
        let mut buffer = BodyBuffer::new(&budget, 10);
        buffer.push(b"0123456");
        buffer.push(b"789abc");
        buffer.complete();
        assert!(budget.used() <= 10);
        let (body, _, share) = buffer.finish();
        assert_eq!(body.bytes, b"0123456789");
        assert_eq!((body.length, body.is_truncated), (13, true));
        drop(share);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_buffer_that_finds_the_budget_used_up_ends_there_and_is_counted() {
        let budget = BodyBudget::new(10);
        let mut first = BodyBuffer::new(&budget, 100);
        first.push(&[b'x'; 8]);
        let mut second = BodyBuffer::new(&budget, 100);
        second.push(&[b'y'; 8]);
        second.push(&[b'y'; 1]);
        second.complete();
        assert_eq!((budget.used(), budget.skipped()), (8, 1));
        let (body, ..) = second.finish();
        assert_eq!(body.omitted, Some(BodyOmission::Memory));
        assert!(body.is_truncated && body.bytes.is_empty() && body.length == 9);
        drop(first);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn stored_messages_are_read_as_they_were_written() {
        let body = |bytes: &[u8]| CapturedBody {
            bytes: bytes.to_vec(),
            length: bytes.len() as u64,
            ..CapturedBody::default()
        };
        let messages = CapturedMessages {
            owners: vec!["usr_1".to_owned()],
            request: Some(CapturedRequest {
                method: "POST".to_owned(),
                url: "http://a.example/?q=\u{e9}".to_owned(),
                is_url_redacted: false,
                headers: vec![Field::new("x", b"\xff\"")],
                trailers: Vec::new(),
                body: body(b"\0\xffrequest"),
            }),
            response: Some(CapturedResponse {
                status_code: 200,
                headers: Vec::new(),
                trailers: vec![Field::new("t", b"1")],
                body: body(b"response"),
            }),
        };
        let stored = messages.encode();
        assert_eq!(CapturedMessages::decode(&stored), Ok(messages));
        let empty = CapturedMessages::default();
        assert_eq!(CapturedMessages::decode(&empty.encode()), Ok(empty));
        for end in 0..stored.len() {
            // A body that lacks its end may decode: the store's checksum detects that.
            drop(CapturedMessages::decode(&stored[..end]));
        }
        assert_eq!(
            CapturedMessages::decode(b"\xff\xff\xff\xff{}"),
            Err(Malformed)
        );
    }
}
