//! The event of an exchange while it is being filled: its fields, and the messages that it captures.

pub mod capture;
pub mod event_slots;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use culvert_events::bodies::{BodyBudget, CapturedExchange};
use culvert_events::{HeaderRules, Reason, Record, Settable, Slot, Text};
use culvert_traces::Trace;
use http::header::{Entry, HeaderMap, HeaderName, HeaderValue};
use http::{StatusCode, request};
use serde_json::{Map, Value};

use crate::event::capture::{CaptureDraft, CaptureRules, RequestTap};
use crate::event::event_slots::POLICY_LOGS;
use crate::policy::secret::REDACTED;

/// Maximum number of log entries; the event keeps fewer if they are long.
const LOGS_MAX: usize = 32;

/// The event of an exchange that is in progress; without a record there is none.
#[derive(Debug, Default)]
pub struct EventDraft {
    /// The record; `None` if there is no event.
    pub record: Option<Record>,
    /// The trace; `None` if the server records none, or the request passes with the one that it has.
    pub trace: Option<Box<Trace>>,
    /// Whether a module that may run more than once refused the exchange.
    is_blocked: bool,
    /// Whether header maps and logs are omitted.
    pub is_trimmed: bool,
    /// Entries of log actions.
    logs: Vec<Map<String, Value>>,
    /// The messages to be stored beside the event.
    capture: Option<Box<CaptureDraft>>,
    /// What came from secrets.
    hidden: Option<Box<Hidden>>,
    /// The position of the reason plus one; 0 without one.
    reason: AtomicU8,
}

/// What of an exchange came from secrets. Events and captures have `[redacted]` in its place.
#[derive(Debug, Default)]
pub struct Hidden {
    /// Whether policies put a secret into the target that the next endpoint gets.
    pub has_target: bool,
    /// Fields that policies added to the request that the next endpoint gets.
    pub(crate) request_fields: Vec<HeaderName>,
    /// Whether policies changed the body that the next endpoint gets.
    pub has_request_body: bool,
    /// Fields of the response.
    pub response_fields: Vec<HeaderName>,
    /// Whether policies made or changed the body of the response.
    pub has_response_body: bool,
}

/// The fields without the values of those that are secret.
pub(crate) fn shown<'h>(headers: &'h HeaderMap, secret: &[HeaderName]) -> Cow<'h, HeaderMap> {
    let mut headers = Cow::Borrowed(headers);
    for name in secret {
        if headers.contains_key(name) {
            let fields = headers.to_mut();
            if let Entry::Occupied(mut values) = fields.entry(name) {
                for value in values.iter_mut() {
                    *value = HeaderValue::from_static(REDACTED);
                }
            }
        }
    }
    headers
}

impl EventDraft {
    /// Whether it makes an event that has this field.
    pub fn wants<T>(&self, slot: Slot<T>) -> bool {
        let record = self.record.as_ref();
        record.is_some_and(|record| record.wants(slot))
    }

    /// Notes why the edge responds instead of an upstream. The first reason counts.
    pub fn note_reason(&self, reason: Reason) {
        if self.reason.load(Ordering::Relaxed) == 0 {
            let position = u8::try_from(reason as usize).unwrap_or(u8::MAX);
            self.reason
                .store(position.saturating_add(1), Ordering::Relaxed);
        }
    }

    /// Why the edge responds instead of an upstream, if it does.
    pub fn reason(&self) -> Option<Reason> {
        let position = self.reason.load(Ordering::Relaxed).checked_sub(1)?;
        Reason::at(usize::from(position))
    }

    /// Sets a field, if there is an event.
    pub fn set<T: Settable>(&mut self, slot: Slot<T>, value: T::In<'_>) {
        if let Some(record) = &mut self.record {
            record.set(slot, value);
        }
    }

    /// Like [`Self::set`], for a decision that may be made more than once. A block is final.
    pub fn decide(&mut self, slot: Slot<Text>, decision: &str) {
        if !self.is_blocked {
            self.set(slot, decision);
        }
        self.is_blocked |= decision == "block";
    }

    /// Keeps an entry of the event's log.
    pub fn log(&mut self, entry: Map<String, Value>) {
        if !self.is_trimmed && self.wants(POLICY_LOGS) {
            push_log(&mut self.logs, entry);
        }
    }

    /// What came from secrets, to be extended.
    pub fn hide(&mut self) -> &mut Hidden {
        self.hidden.get_or_insert_default()
    }

    /// The fields of the response for events and captures.
    pub fn shown_response<'h>(&self, headers: &'h HeaderMap) -> Cow<'h, HeaderMap> {
        let hidden = self.hidden.as_ref();
        let fields = hidden.map_or(&[][..], |hidden| &hidden.response_fields);
        shown(headers, fields)
    }

    /// The capture, if the exchange makes an event; a new one if there is none yet.
    fn capture(&mut self, budget: Option<&Arc<BodyBudget>>) -> Option<&mut CaptureDraft> {
        if self.record.is_none() || self.is_trimmed {
            return None;
        }
        let budget = budget?;
        let new = || Box::new(CaptureDraft::new(budget));
        Some(self.capture.get_or_insert_with(new))
    }

    /// Copies the request's body in case a rule of the response phase captures it.
    pub fn tap_request(&mut self, budget: Option<&Arc<BodyBudget>>, bytes_max: usize) {
        if let Some(capture) = self.capture(budget) {
            capture.tap_request(bytes_max);
        }
    }

    /// Captures messages of the exchange.
    pub fn apply_capture(
        &mut self,
        budget: Option<&Arc<BodyBudget>>,
        rules: &Arc<CaptureRules>,
        request: &request::Parts,
        is_tls: bool,
    ) {
        let hidden = self.hidden.take();
        if let Some(capture) = self.capture(budget) {
            capture.apply(rules, request, is_tls, hidden.as_deref());
        }
        self.hidden = hidden;
    }

    /// Copies the request's body, if it is captured.
    pub fn request_tap(&self) -> Option<&Arc<RequestTap>> {
        self.capture.as_ref()?.tap()
    }

    /// The final head of the response, for a capture.
    pub fn capture_answer(&mut self, status: StatusCode, headers: &HeaderMap) {
        if let Some(capture) = &mut self.capture {
            let hidden = self.hidden.as_ref();
            let has_secret_body = hidden.is_some_and(|hidden| hidden.has_response_body);
            capture.answer(status, headers, has_secret_body);
        }
    }

    /// Body bytes of the response, for a capture.
    pub fn capture_sent(&mut self, data: &[u8]) {
        if let Some(capture) = &mut self.capture {
            capture.sent(data);
        }
    }

    /// Trailers of the response, for a capture.
    pub fn capture_trailers(&mut self, trailers: &HeaderMap) {
        if let Some(capture) = &mut self.capture {
            capture.sent_trailers(trailers);
        }
    }

    /// Ends the capture. `is_answered` says whether the response is complete.
    pub fn finish_capture(
        &mut self,
        is_answered: bool,
        defaults: &Arc<HeaderRules>,
    ) -> Option<Box<CapturedExchange>> {
        self.capture.take()?.finish(is_answered, defaults)
    }

    /// Whether messages are captured.
    pub fn has_capture(&self) -> bool {
        self.capture.is_some()
    }

    /// Whether it has entries of a log.
    pub fn has_logs(&self) -> bool {
        !self.logs.is_empty()
    }

    /// Puts the log into the record, unless logs are omitted.
    pub fn write_logs(&mut self) {
        if let (Some(record), false, false) =
            (&mut self.record, self.logs.is_empty(), self.is_trimmed)
        {
            record.set(POLICY_LOGS, &self.logs);
        }
    }
}

/// Adds an entry, up to the limit of an event.
pub(crate) fn push_log(logs: &mut Vec<Map<String, Value>>, entry: Map<String, Value>) {
    if logs.len() < LOGS_MAX {
        logs.push(entry);
    }
}
