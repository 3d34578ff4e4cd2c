//! The life of a traffic event, from the first byte to the last.
//!
//! A [`Recording`] belongs to one exchange and is completed by being dropped, wherever that happens:
//! at the end of the answer, with a body that nobody wants any more, with a connection that broke,
//! in an unwinding panic. What is dropped before the answer was complete is an exchange cut short.
//!
//! An answer on HTTP/1 is complete when its last byte has left the process, which is after its body
//! is dropped: the record waits for that in the connection ([`Unflushed`]).
//!
//! Nothing is allocated or formatted for an event that nobody captures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use culvert_base::Timestamp;
use culvert_events::{
    Cookies, HTTP_REQUEST_COMPLETE, HeaderRules, Record, Slot, TCP_CONNECTION_CLOSED, Text,
};
use culvert_http::authority::Authority;
use culvert_http::target::Received;
use culvert_policy::event::EventDraft;
use http::header::{HOST, HeaderMap, USER_AGENT};
use http::{Method, StatusCode, Version, request};

use crate::alarm::Alarm;
use crate::downstream::Downstream;
use crate::event_slots;
use crate::http::upload::{Cap, UploadPace};
use crate::http1_state::Turn;
use crate::overload::Level;
use crate::rules::Timeouts;

/// Header bytes that the open requests of an HTTP/2 connection may hold together.
pub(crate) const HEADER_BYTES_MAX: usize = 512 << 10;

/// One exchange, and what is captured of it.
#[derive(Debug)]
pub(crate) struct Recording {
    down: Arc<Downstream>,
    is_http1: bool,
    /// Whether it is no client's.
    is_aside: bool,
    event: EventDraft,
    sent: Sent,
    /// HTTP/2: payload bytes of the request so far.
    received: Option<Arc<AtomicU64>>,
    /// Set when the request's body is longer than it may be.
    is_over: Option<Arc<AtomicBool>>,
    /// HTTP/2: set when the client broke the request's body off.
    is_cut: Option<Arc<AtomicBool>>,
    /// HTTP/2: what the request's head holds of its connection's allowance.
    header_bytes: usize,
    /// Whether the whole answer was handed to the protocol.
    is_answered: bool,
    /// Times of the endpoints it went through.
    timeouts: Timeouts,
    /// How the request's body comes, if it has one.
    upload: Option<Arc<UploadPace>>,
    pub(crate) alarm: Alarm,
}

/// Counts the payload bytes of an HTTP/2 request, once its body is read.
#[derive(Debug)]
pub(crate) struct ReceivedCounter<'x> {
    received: &'x mut Option<Arc<AtomicU64>>,
    is_counted: bool,
}

impl ReceivedCounter<'_> {
    /// A new counter, if its value is used.
    pub(crate) fn start(&mut self) -> Option<Arc<AtomicU64>> {
        if !self.is_counted {
            return None;
        }
        let counter = Arc::new(AtomicU64::new(0));
        *self.received = Some(Arc::clone(&counter));
        Some(counter)
    }
}

/// How far an answer has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sent {
    /// Body bytes handed to the protocol, and the chunk framing around them.
    payload: u64,
    chunking: u64,
    /// Bytes of the head, and where on the connection it begins.
    head: u64,
    begins: u64,
    /// How the body is encoded, and bytes of it that went in.
    coding: Option<&'static str>,
    raw: u64,
}

/// The record of an answer whose last byte may not have left.
#[derive(Debug)]
pub(crate) struct Unflushed {
    record: Record,
    sent: Sent,
}

impl Recording {
    /// Begins an exchange on a connection.
    pub(crate) fn begin(down: Arc<Downstream>, version: Version) -> Self {
        down.edge.meters.requests.up();
        down.counters.open.fetch_add(1, Ordering::AcqRel);
        down.counters.begun.fetch_add(1, Ordering::Relaxed);
        Self::new(down, version)
    }

    /// For a request that is no client's, which makes no event.
    pub(crate) fn aside(down: Arc<Downstream>) -> Self {
        down.counters.open.fetch_add(1, Ordering::AcqRel);
        let mut aside = Self::new(down, Version::HTTP_2);
        aside.is_aside = true;
        aside
    }

    fn new(down: Arc<Downstream>, version: Version) -> Self {
        Self {
            is_http1: version != Version::HTTP_2,
            is_aside: false,
            event: EventDraft::default(),
            sent: Sent::default(),
            received: None,
            is_over: None,
            is_cut: None,
            header_bytes: 0,
            is_answered: false,
            timeouts: Timeouts::default(),
            upload: None,
            alarm: down.borrow_alarm(),
            down,
        }
    }

    /// The connection of the exchange.
    pub(crate) fn down(&self) -> &Arc<Downstream> {
        &self.down
    }

    /// Holds it to the times of an endpoint, and to those of the endpoints before where that has none.
    pub(crate) fn reached(&mut self, timeouts: Timeouts) {
        self.timeouts = timeouts.or(self.timeouts);
        if let (Some(write), false) = (timeouts.write, self.is_http1) {
            self.down.allow_write(write);
        }
    }

    /// Times of the endpoints it went through.
    pub(crate) fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// How long connecting to the upstream may take.
    pub(crate) fn connect_limit(&self) -> Duration {
        let limits = &self.down.rules.limits;
        self.timeouts.connect.unwrap_or(limits.connect)
    }

    /// How long the head of an answer may be in coming.
    pub(crate) fn first_byte_limit(&self) -> Duration {
        // A server of gRPC may say nothing before it has a message.
        let is_grpc = self.upload.as_ref().is_some_and(|upload| upload.is_grpc());
        match self.timeouts.first_byte {
            Some(first_byte) => first_byte,
            None if is_grpc => self.idle_limit(),
            None => self.down.rules.limits.answer,
        }
    }

    /// How long nothing may move either way.
    pub(crate) fn idle_limit(&self) -> Duration {
        let limits = &self.down.rules.limits;
        self.timeouts.idle.unwrap_or(limits.tunnel_idle)
    }

    /// The longest that the client may take nothing of what waits for it.
    pub(crate) fn write_limit(&self) -> Duration {
        let limits = &self.down.rules.limits;
        self.timeouts.write.unwrap_or(limits.write_stall)
    }

    /// How long the client may send nothing of a body that it owes.
    pub(crate) fn request_limit(&self) -> Duration {
        let limits = &self.down.rules.limits;
        self.timeouts.request.unwrap_or(limits.body_stall)
    }

    /// Watches how the client sends the request's body.
    pub(crate) fn watch_upload(&mut self, is_grpc: bool) -> Arc<UploadPace> {
        let pace = Arc::new(UploadPace::new(is_grpc));
        self.upload = Some(Arc::clone(&pace));
        pace
    }

    /// How the client sends the request's body, if it has one.
    pub(crate) fn upload(&self) -> Option<&UploadPace> {
        self.upload.as_deref()
    }

    /// Notes whose exchange it is and what is asked. Until then it makes no event.
    pub(crate) fn resolved(
        &mut self,
        account: &Arc<str>,
        parts: &request::Parts,
        authority: &Authority<'_>,
    ) {
        let tls = self.down.info.tls.get();
        let server_name = match tls {
            Some(_) => self.down.info.sni(),
            None => authority.host.as_ref(),
        };
        self.down.attribute(account, server_name);

        let capture = self.down.edge.recorder.capture(&HTTP_REQUEST_COMPLETE);
        if capture.is_none() {
            return;
        }
        let mut record = Record::new(&HTTP_REQUEST_COMPLETE, capture, Arc::clone(account));
        let (client, server) = self.down.info.addresses();
        record.set(event_slots::http::CLIENT_IP, client);
        record.set(event_slots::http::SERVER_IP, server);
        record.set(event_slots::http::SERVER_NAME, server_name);
        record.set(
            event_slots::http::SERVER_PORT,
            i32::from(self.down.info.server.port()),
        );
        record.set(event_slots::http::START_TS, self.down.info.started_at());
        if let Some(handshake) = tls.and_then(|tls| tls.handshake.get()) {
            record.set(event_slots::http::CIPHER_SUITE, handshake.cipher_suite());
            record.set(event_slots::http::TLS_VERSION, handshake.version());
            if let Some(client) = &handshake.client {
                record.set(event_slots::http::CLIENT_SERIAL, &client.serial);
                record.set(event_slots::http::CLIENT_COMMON_NAME, &client.common_name);
            }
        }
        let scheme = if tls.is_some() { "https" } else { "http" };
        set_method(&mut record, &parts.method);
        let rules = &self.down.rules.header_rules;
        set_url(&mut record, parts, scheme, authority, rules);
        if let Some(agent) = parts.headers.get(USER_AGENT) {
            record.set_bytes(event_slots::http::USER_AGENT, agent.as_bytes());
        }
        // HTTP/2 names its host outside the fields; events have it among them.
        let host = (!self.is_http1 && !parts.headers.contains_key(HOST))
            .then(|| (&b"host"[..], authority.text.as_bytes()));
        let cookies = if self.is_http1 {
            Cookies::AsReceived
        } else {
            Cookies::Joined
        };
        if !(record.wants(event_slots::http::REQUEST_HEADERS) && self.is_trimmed()) {
            record.set_headers(
                event_slots::http::REQUEST_HEADERS,
                &self.down.rules.header_rules,
                cookies,
                host.into_iter().chain(lines(&parts.headers)),
            );
        }
        self.event.record = Some(record);
    }

    /// Whether its event goes without header maps and logs, for want of room.
    fn is_trimmed(&mut self) -> bool {
        if !self.event.is_trimmed && self.down.edge.level() >= Level::Tight {
            self.event.is_trimmed = true;
            self.down.edge.meters.events_trimmed.up();
        }
        self.event.is_trimmed
    }

    /// Its event as policies fill it, and where they count the bytes of its body.
    pub(crate) fn for_policy(&mut self) -> (&mut EventDraft, ReceivedCounter<'_>) {
        let is_counted = !self.is_http1 && self.event.record.is_some();
        let received = ReceivedCounter {
            received: &mut self.received,
            is_counted,
        };
        (&mut self.event, received)
    }

    /// Says what a module decided that may run more than once: to block is final.
    pub(crate) fn decide(&mut self, slot: Slot<Text>, decision: &str) {
        self.event.decide(slot, decision);
    }

    /// Makes no event after all.
    pub(crate) fn withdraw(&mut self) {
        self.event.record = None;
    }

    /// Notes that the client's address is not admitted.
    pub(crate) fn blocked(&mut self) {
        if let Some(record) = &mut self.event.record {
            record.set(event_slots::http::IP_POLICY_DECISION, "block");
        }
    }

    /// Notes whether the upstream connection of the last attempt had served before.
    pub(crate) fn upstream(&mut self, is_reused: bool) {
        if let Some(record) = &mut self.event.record {
            record.set(event_slots::http::CONNECTION_REUSED, is_reused);
        }
    }

    /// Where an HTTP/2 request's payload bytes are to be counted, if anyone asks. On HTTP/1 they are
    /// counted on the wire.
    pub(crate) fn count_received(&mut self) -> Option<Arc<AtomicU64>> {
        self.for_policy().1.start()
    }

    /// How long the request's body may be, where that is limited.
    pub(crate) fn cap(&mut self) -> Option<Cap> {
        let left = self.down.rules.limits.body_bytes;
        if left == u64::MAX {
            return None;
        }
        let is_over = Arc::clone(self.is_over.get_or_insert_default());
        Some(Cap { left, is_over })
    }

    /// Whether the request's body was longer.
    pub(crate) fn is_over(&self) -> bool {
        let is_over = self.is_over.as_ref();
        is_over.is_some_and(|is_over| is_over.load(Ordering::Acquire))
    }

    /// Where an HTTP/2 client is noted to have broken its request off. On HTTP/1 the connection itself sees that.
    pub(crate) fn cut(&mut self) -> Option<Arc<AtomicBool>> {
        (!self.is_http1).then(|| Arc::clone(self.is_cut.get_or_insert_default()))
    }

    /// Whether it has.
    pub(crate) fn is_cut(&self) -> bool {
        let is_cut = self.is_cut.as_ref();
        is_cut.is_some_and(|is_cut| is_cut.load(Ordering::Acquire))
    }

    /// Takes the head of an HTTP/2 request into its connection's allowance. False when there is no
    /// room for it beside the requests that are open.
    pub(crate) fn hold_head(&mut self, parts: &request::Parts) -> bool {
        let target = parts.uri.path_and_query().map_or(0, |it| it.as_str().len());
        // With the overhead for each field of RFC 9113 6.5.2.
        let fields = parts.headers.iter();
        let bytes = fields.fold(target, |sum, (name, value)| {
            sum + name.as_str().len() + value.len() + 32
        });
        self.header_bytes = bytes;
        self.down
            .counters
            .header_bytes
            .fetch_add(bytes, Ordering::AcqRel)
            + bytes
            <= HEADER_BYTES_MAX
    }

    /// Whether there is a way for answers before the answer: a client's exchange has one.
    pub(crate) fn takes_interim(&self) -> bool {
        !self.is_aside
    }

    /// Notes the final head of the answer.
    pub(crate) fn answer(&mut self, status: StatusCode, headers: &HeaderMap) {
        let is_trimmed = self.event.wants(event_slots::http::RESPONSE_HEADERS) && self.is_trimmed();
        let Some(record) = &mut self.event.record else {
            return;
        };
        record.set(event_slots::http::STATUS_CODE, i32::from(status.as_u16()));
        if !is_trimmed {
            record.set_headers(
                event_slots::http::RESPONSE_HEADERS,
                &self.down.rules.header_rules,
                Cookies::AsReceived,
                lines(headers),
            );
        }
        if self.is_http1 {
            self.sent.begins = self.down.counters.handed_out();
        }
    }

    /// Notes of how many bytes the answer's head is, on HTTP/1.
    pub(crate) fn head(&mut self, bytes: usize) {
        self.sent.head = bytes as u64;
    }

    /// Counts body bytes of the answer.
    pub(crate) fn sent(&mut self, bytes: usize, is_chunked: bool) {
        self.sent.payload = self.sent.payload.saturating_add(bytes as u64);
        if is_chunked {
            // Size in hexadecimal and two line ends.
            let digits = u64::from((usize::BITS - bytes.leading_zeros()).div_ceil(4));
            self.sent.chunking = self.sent.chunking.saturating_add(digits + 4);
        }
    }

    /// Of what was counted, so many bytes were not handed over.
    pub(crate) fn unsent(&mut self, bytes: usize) {
        self.sent.payload = self.sent.payload.saturating_sub(bytes as u64);
    }

    /// Notes how the answer's body is encoded.
    pub(crate) fn encodes(&mut self, coding: &'static str) {
        self.sent.coding = Some(coding);
    }

    /// Notes how many bytes of the body were encoded so far.
    pub(crate) fn encoded(&mut self, raw: u64) {
        self.sent.raw = raw;
    }

    /// The whole answer was handed to the protocol.
    pub(crate) fn answered(&mut self) {
        self.is_answered = true;
    }

    fn write_logs(&mut self) {
        if self.event.has_logs() {
            self.is_trimmed();
            self.event.write_logs();
        }
    }

    /// The answer was an upgrade, and the upgraded stream is over.
    pub(crate) fn tunnel_closed(mut self) {
        self.write_logs();
        if let Some(record) = self.event.record.take() {
            let down = Arc::clone(&self.down);
            offer(record, 0, Sent::default(), Some(0), &down);
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.down.return_alarm(std::mem::take(&mut self.alarm));
        self.write_logs();
        if let Some(record) = self.event.record.take() {
            if !self.is_http1 {
                let received = self
                    .received
                    .as_ref()
                    .map_or(0, |count| count.load(Ordering::Relaxed));
                offer(
                    record,
                    received,
                    self.sent,
                    Some(self.sent.payload),
                    &self.down,
                );
            } else {
                let unflushed = Unflushed {
                    record,
                    sent: self.sent,
                };
                if self.is_answered && self.down.http1.turn() == Turn::Edge {
                    self.down.http1.keep(unflushed);
                } else {
                    unflushed.cut(&self.down);
                }
            }
        }
        if self.is_http1 && self.is_answered && self.down.http1.turn() == Turn::Edge {
            self.down.http1.set_turn(Turn::Flush);
        }
        self.down
            .counters
            .header_bytes
            .fetch_sub(self.header_bytes, Ordering::AcqRel);
        self.down.counters.open.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Unflushed {
    /// Everything has left.
    pub(crate) fn complete(self, down: &Downstream) {
        let payload = Some(self.sent.payload);
        offer(self.record, down.http1.payload(), self.sent, payload, down);
    }

    /// The connection ended before that.
    pub(crate) fn cut(self, down: &Downstream) {
        let wire = down.counters.handed_out().saturating_sub(self.sent.begins);
        // Nothing of the head left: nothing was answered.
        let sent = (wire > 0).then(|| {
            let whole = self.sent.payload.saturating_add(self.sent.chunking);
            let missing = whole.saturating_sub(wire.saturating_sub(self.sent.head));
            self.sent.payload.saturating_sub(missing)
        });
        offer(self.record, down.http1.payload(), self.sent, sent, down);
    }
}

/// Completes and offers an exchange's record; `payload` is `None` when not even a status was sent.
fn offer(mut record: Record, received: u64, sent: Sent, payload: Option<u64>, down: &Downstream) {
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
        }
    }
    record.complete(down.info.now());
    hand_over(record, down);
}

/// Gives a complete record to the recorder, unless there is no room for events.
fn hand_over(record: Record, down: &Downstream) {
    if down.edge.drops_events() {
        down.edge.meters.shed_events.up();
    } else {
        down.edge.recorder.offer(record);
    }
}

/// A connection that belonged to someone is closed.
pub(crate) fn connection_closed(
    down: &Downstream,
    account: &Arc<str>,
    server_name: &str,
    at: Timestamp,
) {
    let capture = down.edge.recorder.capture(&TCP_CONNECTION_CLOSED);
    if capture.is_none() {
        return;
    }
    let mut record = Record::new(&TCP_CONNECTION_CLOSED, capture, Arc::clone(account));
    let (bytes_in, bytes_out) = down.counters.bytes();
    let (client, server) = down.info.addresses();
    record.set(event_slots::tcp::BYTES_IN, number(bytes_in));
    record.set(event_slots::tcp::BYTES_OUT, number(bytes_out));
    record.set(event_slots::tcp::CLIENT_IP, client);
    record.set(event_slots::tcp::END_TS, at);
    record.set(event_slots::tcp::SERVER_IP, server);
    record.set(event_slots::tcp::SERVER_NAME, server_name);
    record.set(
        event_slots::tcp::SERVER_PORT,
        i32::from(down.info.server.port()),
    );
    record.set(event_slots::tcp::START_TS, down.info.started_at());
    if let Some(decision) = down.decision() {
        record.set(event_slots::tcp::IP_POLICY_DECISION, decision);
    }
    down.policy.with_logs(|logs| {
        if down.edge.level() < Level::Tight {
            record.set(event_slots::tcp::POLICY_LOGS, logs);
        } else if !logs.is_empty() && record.wants(event_slots::tcp::POLICY_LOGS) {
            down.edge.meters.events_trimmed.up();
        }
    });
    record.complete(at);
    hand_over(record, down);
}

/// Field lines in wire order, names grouped as they are sent.
fn lines(headers: &HeaderMap) -> impl Iterator<Item = (&[u8], &[u8])> {
    headers
        .iter()
        .map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()))
}

fn number(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
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

fn set_url(
    record: &mut Record,
    parts: &request::Parts,
    scheme: &'static str,
    authority: &Authority<'_>,
    rules: &HeaderRules,
) {
    // Events tell what came, which may be another spelling of what is sent.
    let path = match parts.extensions.get::<Received>().map(Received::path) {
        Some("") => "/",
        Some(path) => path,
        None => parts.uri.path(),
    };
    let query = parts.uri.query();
    record.set(event_slots::http::URL_SCHEME, scheme);
    record.set(event_slots::http::URL_HOST, &authority.host);
    record.set(event_slots::http::URL_PATH, path);
    let mark = query.map_or("", |_| "?");
    let query = rules.query(query.unwrap_or_default());
    record.set(event_slots::http::URL_QUERY, &query);
    let raw = [scheme, "://", authority.text, path, mark, &query];
    record.set_parts(event_slots::http::URL_RAW, &raw);
}
