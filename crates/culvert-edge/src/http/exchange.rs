//! One HTTP request and its response: its limits, its timer and the record of its event.
//!
//! An [`HttpExchange`] completes its record when it is dropped, wherever that happens: at the end of the
//! response, with a body that is no longer read, with a connection that broke, in an unwinding panic. If it is
//! dropped before the response was complete, the exchange was cut short.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use culvert_edge_config::Timeouts;
use culvert_events::Reason;
use culvert_http::authority::Authority;
use culvert_http::fields::strip_spellings;
use culvert_io::{Alarm, UploadProgress};
use culvert_policy::problem::Problem;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{StatusCode, Version};

use crate::balance::gate::{InFlight, NoPlace, Patience};
use crate::connection::downstream::Downstream;
use crate::connection::http1_state::{Broken, Http1Turn};
use crate::http::request_body::BodyLimit;
use crate::recording::counting::ExchangeCount;
use crate::recording::{FieldLines, RecordedRequest, Recording, lines};
use crate::snapshot::group::{Group, Member};

/// Header bytes that the open requests of an HTTP/2 connection may hold together.
pub(crate) const HEADER_BYTES_MAX: usize = 512 << 10;

/// Whether another open request of an HTTP/2 connection may hold a head of this size.
pub(crate) fn can_hold_head(down: &Downstream, bytes: usize) -> bool {
    let held = down.conn.counters.header_bytes.load(Ordering::Acquire);
    held.saturating_add(bytes) <= HEADER_BYTES_MAX
}

/// Time limits until the head of the upstream's response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpstreamLimits {
    /// How long connecting to the upstream may take.
    pub(crate) connect: Duration,
    /// How long the upstream may take to send the head of its response.
    pub(crate) first_byte: Duration,
    /// How long the client may send nothing of the request's body.
    pub(crate) request: Duration,
    /// How long neither side of a gRPC call may send anything.
    pub(crate) idle: Duration,
}

/// One request and its response.
#[derive(Debug)]
pub(crate) struct HttpExchange {
    down: Arc<Downstream>,
    is_http1: bool,
    /// Whether a policy makes the request, and not the client.
    is_call: bool,
    pub(crate) recording: Recording,
    pub(crate) count: ExchangeCount,
    /// Set when the request's body exceeds its limit.
    is_over: Option<Arc<AtomicBool>>,
    /// HTTP/2: set when the client aborts the request's body.
    is_cut: Option<Arc<AtomicBool>>,
    /// HTTP/2: header bytes that the request holds of its connection's allowance.
    header_bytes: usize,
    /// Whether the whole response was handed to the protocol.
    is_answered: bool,
    /// Whether it was refused, and counted so, before it reached an endpoint.
    is_refused: bool,
    /// The timeouts of the endpoints it has reached.
    timeouts: Timeouts,
    /// The progress of the request's body, if it has one.
    upload: Option<Arc<UploadProgress>>,
    /// The fields of the response that policies set or removed.
    set_by_policies: Vec<HeaderName>,
    /// Its place at the upstream that serves it, if its endpoint has several.
    open_at: Option<InFlight>,
    /// Its places at the endpoints that it has passed and that have a limit.
    passed_places: Vec<InFlight>,
    /// How long it has waited for its places.
    pub(crate) patience: Patience,
    /// The cookie that keeps the client at the upstream that served it, for the response.
    pub(crate) sticky_cookie: Option<Box<HeaderValue>>,
    /// Whether it went to a stand-in.
    pub(crate) is_at_stand_in: bool,
    /// Whether the client got an interim response of an upstream.
    pub(crate) has_informed: bool,
    pub(crate) alarm: Alarm,
}

impl HttpExchange {
    /// Begins the exchange of a client's request.
    pub(crate) fn begin(down: Arc<Downstream>, version: Version) -> Box<Self> {
        let counters = &down.conn.counters;
        down.edge.state.meters.requests.up();
        counters.open.fetch_add(1, Ordering::AcqRel);
        counters.begun.fetch_add(1, Ordering::Relaxed);
        Self::new(down, version, false)
    }

    /// Begins the exchange of a policy's request, which makes no event.
    pub(crate) fn call(down: Arc<Downstream>) -> Box<Self> {
        down.conn.counters.open.fetch_add(1, Ordering::AcqRel);
        Self::new(down, Version::HTTP_2, true)
    }

    fn new(down: Arc<Downstream>, version: Version, is_call: bool) -> Box<Self> {
        let is_http1 = version != Version::HTTP_2;
        // Boxed, because it passes through many futures, each of which would copy it.
        Box::new(Self {
            is_http1,
            is_call,
            recording: Recording::new(version),
            count: ExchangeCount::begin(),
            is_over: None,
            is_cut: None,
            header_bytes: 0,
            is_answered: false,
            is_refused: false,
            timeouts: Timeouts::default(),
            upload: None,
            set_by_policies: Vec::new(),
            open_at: None,
            passed_places: Vec::new(),
            patience: Patience::default(),
            sticky_cookie: None,
            is_at_stand_in: false,
            has_informed: false,
            alarm: down.conn.borrow_alarm(),
            down,
        })
    }

    /// The connection of the exchange.
    pub(crate) fn down(&self) -> &Arc<Downstream> {
        &self.down
    }

    /// Applies the timeouts of an endpoint. Those it does not set stay as they are.
    pub(crate) fn reached(&mut self, timeouts: Timeouts) {
        self.timeouts = timeouts.or(self.timeouts);
        if let (Some(write), false) = (timeouts.write, self.is_http1) {
            self.down.conn.allow_write(write);
        }
    }

    /// The timeouts of the endpoints it has reached.
    pub(crate) fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// The time limits of the upstream, and of the client until the upstream responds.
    pub(crate) fn upstream_limits(&self) -> UpstreamLimits {
        let (limits, timeouts) = (&self.down.conn.rules.limits, self.timeouts);
        let idle = self.idle_limit();
        // A gRPC server may send nothing before its first message.
        let is_grpc = self.upload.as_ref().is_some_and(|upload| upload.is_grpc());
        let first_byte = if is_grpc { idle } else { limits.answer };
        UpstreamLimits {
            connect: timeouts.connect.unwrap_or(limits.connect),
            first_byte: timeouts.first_byte.unwrap_or(first_byte),
            request: timeouts.request.unwrap_or(limits.body_stall),
            idle,
        }
    }

    /// The idle timeout of both directions.
    pub(crate) fn idle_limit(&self) -> Duration {
        let limits = &self.down.conn.rules.limits;
        self.timeouts.idle.unwrap_or(limits.tunnel_idle)
    }

    /// How long the client may read nothing of the response.
    pub(crate) fn write_limit(&self) -> Duration {
        let limits = &self.down.conn.rules.limits;
        self.timeouts.write.unwrap_or(limits.write_stall)
    }

    /// Starts to measure how the client sends the request's body.
    pub(crate) fn watch_upload(&mut self, is_grpc: bool) -> Arc<UploadProgress> {
        let progress = Arc::new(UploadProgress::new(is_grpc));
        self.upload = Some(Arc::clone(&progress));
        progress
    }

    /// The progress of the request's body, if it has one.
    pub(crate) fn upload(&self) -> Option<&UploadProgress> {
        self.upload.as_deref()
    }

    /// Attributes the exchange to the endpoints at its address, of which one serves the request, and starts its record.
    pub(crate) fn attribute<'x>(
        &mut self,
        group: &Group,
        member: &Member,
        mut request: RecordedRequest<'_, impl FieldLines<'x>>,
        authority: &'x Authority<'_>,
    ) {
        // What the query of a path of the edge says is a secret of a sign-in.
        if group.edge_path_member(request.normalised_path).is_some() {
            request.query = None;
        }
        let conn = &self.down.conn;
        let server_name = match conn.info.tls.get() {
            Some(_) => conn.info.sni(),
            None => authority.host.as_ref(),
        };
        let account = group.account();
        conn.attribute(account, group.endpoint_id(), server_name);
        let rules = &conn.rules.header_rules;
        let (from, request) = ((&conn.info, server_name), (request, authority));
        let (began, of) = (self.count.began(), (account, &member.id));
        self.recording
            .start(&conn.edge, began, of, from, request, rules);
    }

    /// Counts the exchange for an endpoint that it reaches.
    pub(crate) fn passes(&mut self, member: &Arc<Member>) {
        self.count.add(member, &self.down.conn.edge);
    }

    /// The limit of the request's body, if there is one.
    pub(crate) fn body_limit(&mut self) -> Option<BodyLimit> {
        let left = self.down.conn.rules.limits.body_bytes;
        if left == u64::MAX {
            return None;
        }
        let is_over = Arc::clone(self.is_over.get_or_insert_default());
        Some(BodyLimit { left, is_over })
    }

    /// Whether the request's body exceeded its limit.
    pub(crate) fn is_over(&self) -> bool {
        let is_over = self.is_over.as_ref();
        is_over.is_some_and(|is_over| is_over.load(Ordering::Acquire))
    }

    /// The flag that is set when an HTTP/2 client aborts its request. On HTTP/1 the connection has it.
    pub(crate) fn cut(&mut self) -> Option<Arc<AtomicBool>> {
        (!self.is_http1).then(|| Arc::clone(self.is_cut.get_or_insert_default()))
    }

    /// Whether an HTTP/2 client has aborted its request.
    pub(crate) fn is_cut(&self) -> bool {
        let is_cut = self.is_cut.as_ref();
        is_cut.is_some_and(|is_cut| is_cut.load(Ordering::Acquire))
    }

    /// Counts the head of an HTTP/2 request against its connection's allowance. The connection
    /// [can hold it](can_hold_head).
    pub(crate) fn hold_head(&mut self, bytes: usize) {
        self.header_bytes = bytes;
        let held = &self.down.conn.counters.header_bytes;
        held.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Has a place at one of several upstreams, until it ends or goes to another.
    pub(crate) fn opens_at(&mut self, open_at: Option<InFlight>) {
        self.open_at = open_at;
    }

    /// Takes a place of an endpoint that limits how many are in flight, until it ends. Waits for it in turn.
    ///
    /// # Errors
    ///
    /// If there is none in time, or too many wait.
    pub(crate) async fn enter(&mut self, member: &Member) -> Result<(), Problem> {
        self.patience.renew();
        let Some(places) = &member.places else {
            return Ok(());
        };
        let entered = match places.try_enter() {
            Some(entered) => entered,
            None => {
                let terms = member.terms(&self.down.edge.state);
                // Boxed, so that a request that does not wait is small.
                let entering = Box::pin(places.enter_in_turn(terms, &mut self.patience));
                self.down.conn.http1.set_queued(true);
                let entered = entering.await;
                self.down.conn.http1.set_queued(false);
                entered.map_err(|NoPlace| Problem::UpstreamFull)?
            }
        };
        self.passed_places.push(entered);
        Ok(())
    }

    /// Goes to a stand-in of the endpoint.
    pub(crate) fn enters(&mut self, places: Vec<InFlight>) {
        self.open_at = None;
        self.passed_places.extend(places);
    }

    /// Whether a policy makes the request, and not the client.
    pub(crate) fn is_call(&self) -> bool {
        self.is_call
    }

    /// Whether the connection may have requests for hosts of other accounts: over TLS, 421 keeps them apart.
    pub(crate) fn may_share_connection(&self) -> bool {
        !self.is_http1 && self.down.conn.info.tls.get().is_none()
    }

    /// Whether all requests of the connection come from one client, one after the other: not on HTTP/2, where they are
    /// concurrent, and not from a proxy, which may have many clients.
    pub(crate) fn has_one_client(&self) -> bool {
        self.is_http1 && !self.is_call && !self.down.conn.info.is_trusted
    }

    /// Notes fields of the response that a policy sets or removes.
    pub(crate) fn note_set<'x>(&mut self, names: impl Iterator<Item = &'x HeaderName>) {
        self.set_by_policies.extend(names.cloned());
    }

    /// Removes from the trailers of a response what policies set or removed in its head.
    pub(crate) fn strip_set(&self, trailers: &mut HeaderMap) {
        for name in &self.set_by_policies {
            trailers.remove(name);
        }
        strip_spellings(trailers, self.set_by_policies.iter());
    }

    /// The request is refused before it reaches an endpoint, which is counted.
    pub(crate) fn refused(&mut self, reason: Reason) {
        self.is_refused = true;
        self.recording.note_reason(reason);
    }

    /// Counts that the edge refuses a request that has reached an endpoint.
    fn count_refusal(&self) {
        if !self.is_refused
            && !self.is_call
            && self.count.has_endpoint()
            && let Some(reason) = self.recording.reason()
            && let Some(position) = self.down.conn.edge.count_refusal(reason)
        {
            self.count.refused(position);
        }
    }

    /// Records the final head of the response.
    pub(crate) fn answer(&mut self, status: StatusCode, headers: &HeaderMap) {
        let headers = self.recording.shown_response(headers);
        self.recording.capture_answer(status, &headers);
        self.answer_with(status, lines(&headers));
    }

    /// Records the final head of a response that is not captured.
    pub(crate) fn answer_with<'x>(&mut self, status: StatusCode, fields: impl FieldLines<'x>) {
        self.recording.trace_answer(status);
        self.recording.queued = self.patience.waited;
        let upstream = self.recording.upstream_use();
        let answer = (status, self.count.answer(status, upstream));
        let conn = &self.down.conn;
        let (rules, handed_out) = (&conn.rules.header_rules, conn.counters.handed_out());
        self.recording
            .answer(&conn.edge, answer, fields, rules, handed_out);
    }

    /// Counts body bytes of the response.
    pub(crate) fn sent(&mut self, bytes: usize, is_chunked: bool) {
        self.recording.sent(bytes, is_chunked);
        self.count.sent(bytes);
    }

    /// Subtracts bytes that were counted and not sent.
    pub(crate) fn unsent(&mut self, bytes: usize) {
        self.recording.unsent(bytes);
        self.count.unsent(bytes);
    }

    /// The whole response was handed to the protocol.
    pub(crate) fn answered(&mut self) {
        self.is_answered = true;
    }

    /// The response was an upgrade, and the upgraded connection has ended.
    pub(crate) fn tunnel_closed(mut self: Box<Self>) {
        let conn = &self.down.conn;
        self.recording
            .finish_capture(true, &conn.rules.header_rules);
        self.recording.complete_tunnel(&conn.edge, conn.info.now());
        self.recording.finish_trace(true);
    }
}

impl Drop for HttpExchange {
    fn drop(&mut self) {
        if self.is_http1
            && let Some(Broken::Refused(violation)) = self.down.conn.http1.broken()
            && let Some(reason) = Problem::Violation(violation).reason()
        {
            self.recording.note_reason(reason);
        }
        self.count_refusal();
        self.recording.queued = self.patience.waited;
        self.recording.finish_trace(self.is_answered);
        let conn = &self.down.conn;
        conn.return_alarm(std::mem::take(&mut self.alarm));
        self.recording
            .finish_capture(self.is_answered, &conn.rules.header_rules);
        let received = match self.is_http1 {
            true => conn.http1.payload(),
            false => self.recording.received(),
        };
        self.count.end(received);
        if self.is_http1 {
            let is_flushing = self.is_answered && conn.http1.turn() == Http1Turn::Edge;
            match self.recording.take_unflushed(&conn.edge) {
                Some(unflushed) if is_flushing => conn.http1.keep(unflushed),
                Some(unflushed) => conn.record_cut(unflushed),
                None => {}
            }
            if is_flushing {
                conn.http1.set_turn(Http1Turn::Flush);
            }
        } else {
            let now = conn.info.now();
            if let Some(replay) = conn.replay.get() {
                self.recording.assign_id(|| replay.event_id(now));
            }
            self.recording.complete_http2(&conn.edge, now);
        }
        let counters = &conn.counters;
        counters
            .header_bytes
            .fetch_sub(self.header_bytes, Ordering::AcqRel);
        counters.open.fetch_sub(1, Ordering::AcqRel);
    }
}
