//! The records of exchanges and connections, from the first byte to the last.
//!
//! A [`Recording`] fills the record of one exchange. It knows neither the connection nor the exchange, which
//! tell it what happened ([`HttpExchange`](crate::http::exchange::HttpExchange)).
//!
//! A response on HTTP/1 is complete when its last byte has left the process, which is after its body is
//! dropped. Until then the connection keeps the record ([`Unflushed`]).
//!
//! Nothing is allocated or formatted for an event that no subscription selects. The statistics of endpoints do not depend
//! on events ([`counting`]).

pub(crate) mod counting;
pub(crate) mod event_slots;
pub(crate) mod refusal_sampler;
pub(crate) mod refusals;
pub(crate) mod traces;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use culvert_base::Timestamp;
use culvert_events::{
    Cookies, EventId, HTTP_REQUEST_COMPLETE, HeaderRules, Reason, Record, Slot,
    TCP_CONNECTION_CLOSED, Text,
};
use culvert_http::authority::Authority;
use culvert_http::target::Received;
use culvert_overload::Level;
use culvert_policy::capture::RequestTap;
use culvert_policy::conn::ConnInfo;
use culvert_policy::event::EventDraft;
use culvert_policy::own_cookies::recorded_value;
use culvert_policy::policy::conn_state::PolicyConnState;
use culvert_statistics::UpstreamUse;
use culvert_traces::{TRACEPARENT, TraceContext};
use http::header::{HOST, HeaderMap, HeaderValue, USER_AGENT};
use http::{Method, StatusCode, Version, request};
use http_body::Frame;
use tokio::time::Instant;

use crate::edge::edge_state::EdgeState;

/// The record of an exchange while it is filled.
#[derive(Debug)]
pub(crate) struct Recording {
    version: Version,
    event: EventDraft,
    sent: Sent,
    /// HTTP/2: payload bytes of the request so far.
    received: Option<Arc<AtomicU64>>,
    /// How often the request was sent to an upstream.
    attempts: u32,
    /// How long connecting to upstreams took, if a connection was opened.
    connecting: Option<Duration>,
    /// How long the request waited for places at upstreams, if it did.
    pub(crate) queued: Option<Duration>,
}

/// Counts the payload bytes of an HTTP/2 request, once its body is read.
#[derive(Debug)]
pub(crate) struct ReceivedCounter<'x> {
    received: &'x mut Option<Arc<AtomicU64>>,
    is_counted: bool,
}

impl ReceivedCounter<'_> {
    /// A new counter, if the connection does not count them.
    pub(crate) fn start(&mut self) -> Option<Arc<AtomicU64>> {
        if !self.is_counted {
            return None;
        }
        let counter = Arc::new(AtomicU64::new(0));
        *self.received = Some(Arc::clone(&counter));
        Some(counter)
    }
}

/// How much of a response was sent.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    /// Body bytes handed to the protocol, and the chunk framing around them.
    payload: u64,
    chunking: u64,
    /// Bytes of the head, and the bytes of the connection before it.
    head: u64,
    begins: u64,
    /// The content coding of the body, and its bytes before encoding.
    coding: Option<&'static str>,
    raw: u64,
}

/// The record of a response whose last byte may not have left the process.
#[derive(Debug)]
pub(crate) struct Unflushed {
    record: Record,
    sent: Sent,
}

impl Recording {
    pub(crate) fn new(version: Version) -> Self {
        Self {
            version,
            event: EventDraft::default(),
            sent: Sent::default(),
            received: None,
            attempts: 0,
            connecting: None,
            queued: None,
        }
    }

    fn is_http1(&self) -> bool {
        self.version != Version::HTTP_2
    }

    /// Starts the record with the request, which began at `began`. Without this there is no event.
    pub(crate) fn start<'x>(
        &mut self,
        edge: &EdgeState,
        began: Instant,
        (account, endpoint): (&Arc<str>, &Arc<str>),
        (info, server_name): (&ConnInfo, &str),
        (request, authority): (RecordedRequest<'_, impl FieldLines<'x>>, &'x Authority<'_>),
        rules: &HeaderRules,
    ) {
        let capture = edge.recorder.capture(&HTTP_REQUEST_COMPLETE);
        if capture.is_none() {
            return;
        }
        let mut record = Record::new(&HTTP_REQUEST_COMPLETE, capture, Arc::clone(account));
        record.begin(Arc::clone(endpoint), info.at(began));
        let tls = info.tls.get();
        let (client, server) = info.addresses();
        record.set(event_slots::http::CLIENT_IP, client);
        record.set(event_slots::http::SERVER_IP, server);
        record.set(event_slots::http::SERVER_NAME, server_name);
        record.set(
            event_slots::http::SERVER_PORT,
            i32::from(info.server.port()),
        );
        record.set(event_slots::http::START_TS, info.started_at());
        if let Some(handshake) = tls.and_then(|tls| tls.handshake.get()) {
            record.set(event_slots::http::CIPHER_SUITE, handshake.cipher_suite());
            record.set(event_slots::http::TLS_VERSION, handshake.version());
            if let Some(client) = &handshake.client {
                record.set(event_slots::http::CLIENT_SERIAL, &client.serial);
                record.set(event_slots::http::CLIENT_COMMON_NAME, &client.common_name);
            }
        }
        let scheme = if tls.is_some() { "https" } else { "http" };
        record.set(event_slots::http::PROTOCOL, protocol(self.version));
        set_method(&mut record, request.method);
        set_url(&mut record, &request, scheme, authority, rules);
        if let Some(agent) = request.user_agent {
            record.set_bytes(event_slots::http::USER_AGENT, agent);
        }
        // HTTP/2 has its host outside the header fields; events have it among them.
        let host = (!self.is_http1() && !request.has_host)
            .then(|| (&b"host"[..], authority.text.as_bytes()));
        let cookies = if self.is_http1() {
            Cookies::AsReceived
        } else {
            Cookies::Joined
        };
        let (mut trace, wants_trace) = (None, record.wants(event_slots::http::TRACE_ID));
        let lines = host
            .into_iter()
            .chain(request.lines)
            .inspect(|(name, value)| {
                if wants_trace && name.eq_ignore_ascii_case(TRACEPARENT.as_bytes()) {
                    trace = trace.or(Some(*value));
                }
            });
        let wants_headers = record.wants(event_slots::http::REQUEST_HEADERS);
        if wants_headers && !self.is_trimmed(edge) {
            let slot = event_slots::http::REQUEST_HEADERS;
            record.set_headers(slot, rules, cookies, lines);
        } else if wants_trace {
            lines.for_each(drop);
        }
        if let Some(trace) = trace.and_then(trace_id) {
            record.set(event_slots::http::TRACE_ID, trace);
        }
        self.event.record = Some(record);
    }

    /// Marks the record as that of a refused request that stands for this many. The method and the target may be unknown.
    pub(crate) fn refused(&mut self, sampled: u64, has_method: bool, has_target: bool) {
        let Some(record) = &mut self.event.record else {
            return;
        };
        record.set(event_slots::http::SAMPLED, number(sampled));
        record.mark_refused();
        if !has_method {
            record.set(event_slots::http::METHOD, "");
        }
        if !has_target {
            record.set(event_slots::http::URL_PATH, "");
            record.set(event_slots::http::URL_QUERY, "");
            record.set(event_slots::http::URL_RAW, "");
        }
    }

    /// Notes why the edge responds instead of the upstream. The first reason counts.
    pub(crate) fn note_reason(&self, reason: Reason) {
        self.event.note_reason(reason);
    }

    /// Why the edge responds instead of the upstream, if it does.
    pub(crate) fn reason(&self) -> Option<Reason> {
        self.event.reason()
    }

    /// The copy of the request's body, if the request is captured.
    pub(crate) fn request_tap(&self) -> Option<Arc<RequestTap>> {
        self.event.request_tap().map(Arc::clone)
    }

    /// Whether the response is captured.
    pub(crate) fn has_capture(&self) -> bool {
        self.event.has_capture()
    }

    /// Copies a frame of the response, if the response is captured.
    pub(crate) fn copy_sent(&mut self, frame: &Frame<Bytes>) {
        if !self.event.has_capture() {
            return;
        }
        if let Some(data) = frame.data_ref() {
            self.event.capture_sent(data);
        }
        if let Some(trailers) = frame.trailers_ref() {
            self.event.capture_trailers(trailers);
        }
    }

    /// Adds the captured messages to the record. `is_answered` says whether the response is complete.
    pub(crate) fn finish_capture(&mut self, is_answered: bool, rules: &Arc<HeaderRules>) {
        if self.event.has_capture()
            && let Some(bodies) = self.event.finish_capture(is_answered, rules)
            && let Some(record) = &mut self.event.record
        {
            record.attach_bodies(bodies);
        }
    }

    /// Removes the query from the record.
    pub(crate) fn hide_query(&mut self, url: &[&str]) {
        if let Some(record) = &mut self.event.record {
            record.set(event_slots::http::URL_QUERY, "");
            record.set_parts(event_slots::http::URL_RAW, url);
        }
    }

    /// Assigns the id of the event, if there is one.
    pub(crate) fn assign_id(&mut self, id: impl FnOnce() -> EventId) {
        if let Some(record) = &mut self.event.record {
            record.assign_id(id());
        }
    }

    /// Whether overload omits header maps and logs from the event.
    fn is_trimmed(&mut self, edge: &EdgeState) -> bool {
        if !self.event.is_trimmed && edge.level() >= Level::Tight {
            self.event.is_trimmed = true;
            edge.meters.events_trimmed.up();
        }
        self.event.is_trimmed
    }

    /// The event for policies to fill, and the counter of the request's body.
    pub(crate) fn for_policy(&mut self) -> (&mut EventDraft, ReceivedCounter<'_>) {
        let is_counted = !self.is_http1();
        let received = ReceivedCounter {
            received: &mut self.received,
            is_counted,
        };
        (&mut self.event, received)
    }

    /// Records the decision of a module that may run more than once. A block is final.
    pub(crate) fn decide(&mut self, slot: Slot<Text>, decision: &str) {
        self.event.decide(slot, decision);
    }

    /// Discards the record.
    pub(crate) fn withdraw(&mut self) {
        self.event.record = None;
    }

    /// Records that an IP restriction blocked the client.
    pub(crate) fn blocked(&mut self) {
        if let Some(record) = &mut self.event.record {
            record.set(event_slots::http::IP_POLICY_DECISION, "block");
        }
    }

    /// Whether the request was sent to an upstream, as it is known before its response.
    pub(crate) fn upstream_use(&self) -> UpstreamUse {
        match self.reason() {
            Some(reason) if reason.is_unreached() => UpstreamUse::Unreached,
            _ if self.attempts > 0 => UpstreamUse::Reached,
            _ => UpstreamUse::Unneeded,
        }
    }

    /// How many times it was sent to an upstream.
    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Records an attempt: its upstream, and whether the connection was reused.
    pub(crate) fn upstream(&mut self, upstream: &str, is_reused: bool) {
        self.attempts = self.attempts.saturating_add(1);
        if let Some(record) = &mut self.event.record {
            record.set(event_slots::http::CONNECTION_REUSED, is_reused);
            record.set(event_slots::http::UPSTREAM, upstream);
        }
    }

    /// Measures connecting to an upstream, if the event or the trace has that.
    pub(crate) fn connect_clock(&self) -> Option<Instant> {
        let is_wanted = self.event.wants(event_slots::http::CONNECT_MS) || self.is_traced();
        is_wanted.then(Instant::now)
    }

    /// Adds the time since connecting began.
    pub(crate) fn connected(&mut self, clock: Option<Instant>) {
        if let Some(began) = clock {
            *self.connecting.get_or_insert_default() += began.elapsed();
            self.trace_connect(began);
        }
    }

    /// A counter for the payload bytes of an HTTP/2 request. On HTTP/1 the connection counts them.
    pub(crate) fn count_received(&mut self) -> Option<Arc<AtomicU64>> {
        self.for_policy().1.start()
    }

    /// Payload bytes of an HTTP/2 request so far.
    pub(crate) fn received(&self) -> u64 {
        let received = self.received.as_ref();
        received.map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// The fields of a response, without values that came from secrets.
    pub(crate) fn shown_response<'h>(&self, headers: &'h HeaderMap) -> Cow<'h, HeaderMap> {
        self.event.shown_response(headers)
    }

    /// Copies the head of the response, if the response is captured.
    pub(crate) fn capture_answer(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.event.capture_answer(status, headers);
    }

    /// Records the final head of the response, and the time until it. The connection has handed out `handed_out` bytes
    /// before it.
    pub(crate) fn answer<'x>(
        &mut self,
        edge: &EdgeState,
        (status, latency): (StatusCode, Option<Duration>),
        fields: impl FieldLines<'x>,
        rules: &HeaderRules,
        handed_out: u64,
    ) {
        let is_trimmed =
            self.event.wants(event_slots::http::RESPONSE_HEADERS) && self.is_trimmed(edge);
        let Some(record) = &mut self.event.record else {
            return;
        };
        record.set(event_slots::http::STATUS_CODE, i32::from(status.as_u16()));
        if let Some(latency) = latency {
            record.set(event_slots::http::FIRST_BYTE_MS, millis(latency));
        }
        if !is_trimmed {
            record.set_headers(
                event_slots::http::RESPONSE_HEADERS,
                rules,
                Cookies::AsReceived,
                fields,
            );
        }
        if self.is_http1() {
            self.sent.begins = handed_out;
        }
    }

    /// Records the length of the response's head on HTTP/1.
    pub(crate) fn head(&mut self, bytes: usize) {
        self.sent.head = bytes as u64;
    }

    /// Counts body bytes of the response.
    pub(crate) fn sent(&mut self, bytes: usize, is_chunked: bool) {
        self.sent.payload = self.sent.payload.saturating_add(bytes as u64);
        if is_chunked {
            // Size in hexadecimal and two line ends.
            let digits = u64::from((usize::BITS - bytes.leading_zeros()).div_ceil(4));
            self.sent.chunking = self.sent.chunking.saturating_add(digits + 4);
        }
    }

    /// Subtracts bytes that were counted and not sent.
    pub(crate) fn unsent(&mut self, bytes: usize) {
        self.sent.payload = self.sent.payload.saturating_sub(bytes as u64);
    }

    /// Records the content coding of the response.
    pub(crate) fn encodes(&mut self, coding: &'static str) {
        self.sent.coding = Some(coding);
    }

    /// Records how many bytes of the body were encoded so far.
    pub(crate) fn encoded(&mut self, raw: u64) {
        self.sent.raw = raw;
    }

    /// Writes the fields that the end of the exchange sets.
    fn write_end(&mut self, edge: &EdgeState) {
        if self.event.has_logs() {
            self.is_trimmed(edge);
            self.event.write_logs();
        }
        let reason = self.event.reason();
        let Some(record) = &mut self.event.record else {
            return;
        };
        if self.attempts > 0 {
            let attempts = i32::try_from(self.attempts).unwrap_or(i32::MAX);
            record.set(event_slots::http::ATTEMPTS, attempts);
        }
        if let Some(connecting) = self.connecting {
            record.set(event_slots::http::CONNECT_MS, millis(connecting));
        }
        if let Some(queued) = self.queued {
            record.set(event_slots::http::QUEUE_MS, millis(queued));
        }
        if let Some(reason) = reason {
            record.set(event_slots::http::REASON, reason.name());
        }
    }

    /// Completes the record of an upgraded connection, which has ended.
    pub(crate) fn complete_tunnel(&mut self, edge: &EdgeState, now: Timestamp) {
        self.write_end(edge);
        if let Some(record) = self.event.record.take() {
            complete(record, 0, Sent::default(), Some(0), edge, now);
        }
    }

    /// Completes the record of an exchange on HTTP/2.
    pub(crate) fn complete_http2(&mut self, edge: &EdgeState, now: Timestamp) {
        self.write_end(edge);
        if let Some(record) = self.event.record.take() {
            let received = self.received();
            let payload = Some(self.sent.payload);
            complete(record, received, self.sent, payload, edge, now);
        }
    }

    /// Takes the record of an exchange on HTTP/1, whose response may not have left the process.
    pub(crate) fn take_unflushed(&mut self, edge: &EdgeState) -> Option<Unflushed> {
        self.write_end(edge);
        Some(Unflushed {
            record: self.event.record.take()?,
            sent: self.sent,
        })
    }
}

impl Unflushed {
    /// The whole response has left. The request had `received` bytes of payload.
    pub(crate) fn complete(self, edge: &EdgeState, received: u64, now: Timestamp) {
        let payload = Some(self.sent.payload);
        complete(self.record, received, self.sent, payload, edge, now);
    }

    /// The connection ended before that, after it had handed out `handed_out` bytes.
    pub(crate) fn cut(self, edge: &EdgeState, received: u64, handed_out: u64, now: Timestamp) {
        let wire = handed_out.saturating_sub(self.sent.begins);
        // If nothing of the head has left, there was no response.
        let sent = (wire > 0).then(|| {
            let whole = self.sent.payload.saturating_add(self.sent.chunking);
            let missing = whole.saturating_sub(wire.saturating_sub(self.sent.head));
            self.sent.payload.saturating_sub(missing)
        });
        complete(self.record, received, self.sent, sent, edge, now);
    }
}

/// Completes the record of an exchange and offers it. `payload` is `None` if not even a status was sent.
fn complete(
    mut record: Record,
    received: u64,
    sent: Sent,
    payload: Option<u64>,
    edge: &EdgeState,
    now: Timestamp,
) {
    record.set(event_slots::http::REQUEST_BODY_LENGTH, number(received));
    match payload {
        Some(payload) => {
            record.set(event_slots::http::RESPONSE_BODY_LENGTH, number(payload));
            if let Some(coding) = sent.coding {
                record.set(event_slots::http::COMPRESSION_ALGORITHM, coding);
                let saved = number(sent.raw).saturating_sub(number(payload));
                record.set(event_slots::http::BYTES_SAVED, saved);
            }
        }
        None => {
            record.set_null(event_slots::http::STATUS_CODE);
            record.set_null(event_slots::http::RESPONSE_HEADERS);
            record.set_null(event_slots::http::FIRST_BYTE_MS);
        }
    }
    record.complete(now);
    if record.wants(event_slots::http::DURATION_MS) {
        let took = record.took();
        record.set(event_slots::http::DURATION_MS, millis(took));
    }
    edge.offer(record);
}

/// What the event of a closed connection contains.
#[derive(Debug)]
pub(crate) struct ClosedConnection<'x> {
    pub(crate) info: &'x ConnInfo,
    /// Bytes received and sent.
    pub(crate) bytes: (u64, u64),
    pub(crate) policy: &'x PolicyConnState,
    /// The decision of IP policies and restrictions.
    pub(crate) decision: Option<&'static str>,
    pub(crate) ended_at: Timestamp,
    pub(crate) end: Option<&'x ConnEnd>,
    pub(crate) reached: Option<&'x ReachedUpstream>,
}

/// Why the edge ended or refused a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnEnd {
    pub(crate) reason: Reason,
    /// How many refusals its event stands for; 0 if it has none.
    pub(crate) sampled: u64,
    /// Whether nothing of the endpoint has seen it.
    pub(crate) is_refused: bool,
}

/// The upstream of a connection without HTTP.
#[derive(Clone, Debug)]
pub(crate) struct ReachedUpstream {
    pub(crate) upstream: String,
    /// How long connecting took.
    pub(crate) connecting: Duration,
}

impl ClosedConnection<'_> {
    /// Records that the connection is closed.
    pub(crate) fn record(
        self,
        edge: &EdgeState,
        account: &Arc<str>,
        endpoint: &Arc<str>,
        server_name: &str,
    ) {
        let capture = edge.recorder.capture(&TCP_CONNECTION_CLOSED);
        if capture.is_none() {
            return;
        }
        let mut record = Record::new(&TCP_CONNECTION_CLOSED, capture, Arc::clone(account));
        record.begin(Arc::clone(endpoint), self.info.started_at());
        let (bytes_in, bytes_out) = self.bytes;
        let (client, server) = self.info.addresses();
        record.set(event_slots::tcp::BYTES_IN, number(bytes_in));
        record.set(event_slots::tcp::BYTES_OUT, number(bytes_out));
        record.set(event_slots::tcp::CLIENT_IP, client);
        record.set(event_slots::tcp::END_TS, self.ended_at);
        record.set(event_slots::tcp::SERVER_IP, server);
        record.set(event_slots::tcp::SERVER_NAME, server_name);
        record.set(
            event_slots::tcp::SERVER_PORT,
            i32::from(self.info.server.port()),
        );
        record.set(event_slots::tcp::START_TS, self.info.started_at());
        if let Some(decision) = self.decision {
            record.set(event_slots::tcp::IP_POLICY_DECISION, decision);
        }
        self.policy.with_logs(|logs| {
            if edge.level() < Level::Tight {
                record.set(event_slots::tcp::POLICY_LOGS, logs);
            } else if !logs.is_empty() && record.wants(event_slots::tcp::POLICY_LOGS) {
                edge.meters.events_trimmed.up();
            }
        });
        if let Some(end) = self.end {
            record.set(event_slots::tcp::REASON, end.reason.name());
            record.set(event_slots::tcp::SAMPLED, number(end.sampled));
            if end.is_refused {
                record.mark_refused();
            }
        }
        if let Some(reached) = self.reached {
            let connecting = millis(reached.connecting);
            record.set(event_slots::tcp::CONNECT_MS, connecting);
            record.set(event_slots::tcp::UPSTREAM, &reached.upstream);
        }
        record.complete(self.ended_at);
        let took = record.took();
        record.set(event_slots::tcp::DURATION_MS, millis(took));
        edge.offer(record);
    }
}

/// Names and values of header fields, in the order in which they are sent.
pub(crate) trait FieldLines<'x>: Iterator<Item = (&'x [u8], &'x [u8])> {}

impl<'x, I: Iterator<Item = (&'x [u8], &'x [u8])>> FieldLines<'x> for I {}

/// The parts of a request that its event has.
#[derive(Debug)]
pub(crate) struct RecordedRequest<'x, L> {
    pub(crate) method: &'x Method,
    /// As received, which may be spelled differently from the forwarded one.
    pub(crate) path: &'x str,
    /// As forwarded.
    pub(crate) normalised_path: &'x str,
    pub(crate) query: Option<&'x str>,
    pub(crate) user_agent: Option<&'x [u8]>,
    /// Whether `host` is among the fields.
    pub(crate) has_host: bool,
    pub(crate) lines: L,
}

/// The parts of a request with a map of its fields.
pub(crate) fn recorded(parts: &request::Parts) -> RecordedRequest<'_, impl FieldLines<'_>> {
    recorded_with(parts, &parts.headers)
}

/// As [`recorded`], with these fields.
pub(crate) fn recorded_with<'x>(
    parts: &'x request::Parts,
    headers: &'x HeaderMap,
) -> RecordedRequest<'x, impl FieldLines<'x>> {
    let received = parts.extensions.get::<Received>();
    RecordedRequest {
        method: &parts.method,
        path: match received.map(Received::path) {
            Some("") => "/",
            Some(path) => path,
            None => parts.uri.path(),
        },
        normalised_path: parts.uri.path(),
        query: match received {
            Some(received) => received.query(),
            None => parts.uri.query(),
        },
        user_agent: headers.get(USER_AGENT).map(HeaderValue::as_bytes),
        has_host: headers.contains_key(HOST),
        lines: lines(headers),
    }
}

/// The fields of a map.
pub(crate) fn lines(headers: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    headers
        .iter()
        .map(|(name, value)| (name.as_str().as_bytes(), recorded_value(name, value)))
}

fn number(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Whole milliseconds.
fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// The name of an HTTP version in events.
fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2",
        _ => "HTTP/1.1",
    }
}

/// The trace ID of a `traceparent` (W3C Trace Context 3.2).
fn trace_id(value: &[u8]) -> Option<&str> {
    TraceContext::parse(value)?;
    std::str::from_utf8(value.get(3..35)?).ok()
}

fn set_method(record: &mut Record, method: &Method) {
    let name = match *method {
        Method::GET => "get",
        Method::POST => "post",
        Method::PUT => "put",
        Method::DELETE => "delete",
        Method::HEAD => "head",
        Method::OPTIONS => "options",
        Method::PATCH => "patch",
        _ => {
            if record.wants(event_slots::http::METHOD) {
                record.set(
                    event_slots::http::METHOD,
                    &method.as_str().to_ascii_lowercase(),
                );
            }
            return;
        }
    };
    record.set(event_slots::http::METHOD, name);
}

fn set_url<L>(
    record: &mut Record,
    request: &RecordedRequest<'_, L>,
    scheme: &'static str,
    authority: &Authority<'_>,
    rules: &HeaderRules,
) {
    let (path, query) = (request.path, request.query);
    record.set(event_slots::http::URL_SCHEME, scheme);
    record.set(event_slots::http::URL_HOST, &authority.host);
    record.set(event_slots::http::URL_PATH, path);
    let mark = query.map_or("", |_| "?");
    let query = rules.query(query.unwrap_or_default());
    record.set(event_slots::http::URL_QUERY, &query);
    let raw = [scheme, "://", authority.text, path, mark, &query];
    record.set_parts(event_slots::http::URL_RAW, &raw);
}
