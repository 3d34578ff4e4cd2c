//! The trace of an exchange: its begin, the spans of its attempts at upstreams, and its end.
//!
//! Without a [`Tracing`] in the settings an exchange has no trace, and each step here is one comparison. Attributes have
//! the names of OpenTelemetry's semantic conventions for HTTP (version 1.29, stable); our own begin with `culvert.`.
//! No query and no header field is an attribute: they may be secret.

use culvert_base::Share;
use culvert_edge_config::Endpoint;
use culvert_events::Reason;
use culvert_http::http1::RawRequest;
use culvert_policy::host::ConnContext;
use culvert_policy::policy::exchange::{Exchange, Memory};
use culvert_policy::policy::phase::Phase;
use culvert_traces::{
    AttributeValue, Begun, Outgoing, Parent, Span, TRACEPARENT, TRACESTATE, Trace, TraceContext,
    tracestate,
};
use culvert_upstream::{AgentPlace, Dial, Upstream};
use http::{HeaderValue, Method, StatusCode, Version, request};
use tokio::time::Instant;

use crate::recording::{Recording, event_slots};
use crate::settings::tracing::Tracing;

/// What the span of the edge says of a request.
struct Traced<'x> {
    method: &'x Method,
    path: &'x str,
    version: Version,
    host: &'x str,
}

/// A request that has reached an endpoint: its connection, when it began, and the endpoint.
pub(crate) type Reached<'x> = (ConnContext<'x>, Instant, &'x Endpoint);

/// Begins the trace of a request with a map of its fields.
pub(crate) fn begin(
    recording: &mut Recording,
    tracing: &Tracing,
    (conn, began, endpoint): Reached<'_>,
    parts: &request::Parts,
) {
    let fields = |name| {
        let values = parts.headers.get_all(name).into_iter();
        values.map(HeaderValue::as_bytes)
    };
    let parent = Parent {
        context: TraceContext::of(fields(TRACEPARENT)),
        state: tracestate(fields(TRACESTATE)),
        is_trusted: conn.info.is_trusted,
    };
    let condition = || {
        let policy = tracing.condition.as_deref()?;
        let mut memory = Memory::new(conn.info.now());
        let mut x = Exchange::new(Phase::Request, policy, endpoint.info(), conn, &mut memory);
        x.request = Some(parts);
        x.meets_condition()
    };
    let traced = Traced {
        method: &parts.method,
        path: parts.uri.path(),
        version: parts.version,
        host: &endpoint.host,
    };
    let reached = (conn, began, endpoint);
    start(recording, tracing, reached, (parent, condition), &traced);
}

/// Begins the trace of a plain request. Whether it has one now: then its own fields are not sent.
pub(crate) fn begin_plain(
    recording: &mut Recording,
    tracing: &Tracing,
    (conn, began, endpoint): Reached<'_>,
    (request, version): (&RawRequest, Version),
) -> bool {
    let fields = |name| {
        let fields = request.fields().iter();
        fields
            .filter(move |field| field.is(name))
            .map(|field| field.value)
    };
    let parent = Parent {
        context: TraceContext::of(fields(TRACEPARENT)),
        state: tracestate(fields(TRACESTATE)),
        is_trusted: conn.info.is_trusted,
    };
    let target = request.target();
    let traced = Traced {
        method: request.method(),
        path: target.split_once('?').map_or(target, |(path, _)| path),
        version,
        host: &endpoint.host,
    };
    // A request for which an expression decides has a map of its fields.
    let never = || None;
    let reached = (conn, began, endpoint);
    start(recording, tracing, reached, (parent, never), &traced)
}

/// Whether the request has a trace now.
fn start(
    recording: &mut Recording,
    tracing: &Tracing,
    (conn, at, endpoint): Reached<'_>,
    (parent, condition): (Parent, impl FnOnce() -> Option<bool>),
    traced: &Traced<'_>,
) -> bool {
    let info = conn.info;
    let begun = Begun {
        at,
        unix_nanos: u64::try_from(info.at(at).unix_nanos()).unwrap_or(0),
        share: Share::new(&endpoint.owner, &endpoint.id),
    };
    let Some(mut trace) = tracing.tracer.begin(parent, begun, condition) else {
        return false;
    };
    if let Some(span) = trace.server() {
        describe(span, traced);
        let is_tls = info.tls.get().is_some();
        span.set("url.scheme", if is_tls { "https" } else { "http" });
        span.set("server.port", info.server.port());
        span.set("client.address", info.addresses().0);
        span.set("culvert.account.id", &*endpoint.account);
        span.set("culvert.endpoint.id", &*endpoint.id);
    }
    recording.begin_trace(trace);
    true
}

fn describe(span: &mut Span, traced: &Traced<'_>) {
    let name = method_name(traced.method);
    if name == OTHER {
        span.set("http.request.method_original", traced.method.as_str());
        span.name = "HTTP".to_owned();
    } else {
        span.name = name.to_owned();
    }
    span.set("http.request.method", name);
    span.set("url.path", traced.path);
    span.set("server.address", traced.host);
    let version = match traced.version {
        Version::HTTP_10 => "1.0",
        Version::HTTP_2 => "2",
        _ => "1.1",
    };
    span.set("network.protocol.version", version);
}

/// The error of a response that was not sent whole: the client or the upstream ended it.
const INCOMPLETE: &str = "incomplete";
/// The name of methods that are not well known, of which a client could use any number.
const OTHER: &str = "_OTHER";

fn method_name(method: &Method) -> &str {
    match *method {
        Method::GET
        | Method::HEAD
        | Method::POST
        | Method::PUT
        | Method::DELETE
        | Method::OPTIONS
        | Method::PATCH => method.as_str(),
        _ => OTHER,
    }
}

impl Recording {
    fn begin_trace(&mut self, trace: Box<Trace>) {
        if let Some(record) = &mut self.event.record
            && record.wants(event_slots::http::TRACE_ID)
        {
            record.set(event_slots::http::TRACE_ID, &trace.id());
        }
        self.event.trace = Some(trace);
    }

    /// The trace, if its spans are recorded.
    fn recorded_trace(&mut self) -> Option<&mut Trace> {
        let trace = self.event.trace.as_deref_mut();
        trace.filter(|trace| trace.is_recorded())
    }

    /// Whether the exchange has a trace, recorded or not.
    pub(crate) fn has_trace(&self) -> bool {
        self.event.trace.is_some()
    }

    /// Whether spans of the exchange are recorded.
    pub(crate) fn is_traced(&self) -> bool {
        let trace = self.event.trace.as_ref();
        trace.is_some_and(|trace| trace.is_recorded())
    }

    /// Notes how long connecting took, for the attempt that follows.
    pub(super) fn trace_connect(&mut self, began: Instant) {
        if let Some(trace) = self.recorded_trace() {
            trace.note_connect(began, Instant::now());
        }
    }

    /// Begins the span of an attempt. Returns the fields that the request gets, if it has a trace.
    pub(crate) fn trace_attempt(
        &mut self,
        (upstream, name): (&Upstream, &str),
        method: &Method,
        is_reused: bool,
        agents: Option<&dyn Dial>,
    ) -> Option<Outgoing> {
        self.event.trace.as_ref()?;
        let attempts = self.attempts();
        let trace = self.event.trace.as_deref_mut()?;
        let method = match method_name(method) {
            OTHER => "HTTP",
            name => name,
        };
        if let Some(span) = trace.begin_attempt(method, Instant::now()) {
            span.set("http.request.method", method);
            match upstream.agents_endpoint() {
                Some(endpoint) => {
                    span.set("culvert.agent.endpoint.id", endpoint);
                    let place = agents.map(|agents| agents.place(endpoint));
                    let AgentPlace { session, node } = place.unwrap_or_default();
                    if let Some(session) = session {
                        span.set("culvert.agent.session.id", session.as_str());
                    }
                    if let Some(node) = node {
                        span.set("culvert.agent.node", node.as_str());
                    }
                }
                None => {
                    span.set("server.address", upstream.host());
                    // Unix sockets and folders have none.
                    if upstream.port() > 0 {
                        span.set("server.port", upstream.port());
                    }
                }
            }
            span.set("culvert.upstream", name);
            span.set("culvert.connection_reused", is_reused);
            if attempts > 1 {
                span.set("http.request.resend_count", i64::from(attempts) - 1);
            }
        }
        Some(trace.outgoing_fields())
    }

    /// Records an attempt that could not connect to its upstream.
    pub(crate) fn trace_unreached(
        &mut self,
        upstream: (&Upstream, &str),
        method: &Method,
        reason: Reason,
    ) {
        if self.is_traced() {
            drop(self.trace_attempt(upstream, method, false, None));
            self.end_attempt(Err(reason));
        }
    }

    /// Ends the span of the open attempt, with the status of the response or the reason of its failure.
    pub(crate) fn end_attempt(&mut self, outcome: Result<StatusCode, Reason>) {
        let Some(trace) = self.recorded_trace() else {
            return;
        };
        let now = Instant::now();
        match outcome {
            Ok(status) => {
                if let Some(span) = trace.attempt() {
                    span.set("http.response.status_code", status.as_u16());
                }
                let is_error = status.is_client_error() || status.is_server_error();
                trace.end_attempt(if is_error { status.as_str() } else { "" }, now);
            }
            Err(reason) => trace.end_attempt(reason.name(), now),
        }
    }

    /// Notes the head of the response.
    pub(crate) fn trace_answer(&mut self, status: StatusCode) {
        if let Some(trace) = self.recorded_trace() {
            trace.note_answer(Instant::now());
            if let Some(span) = trace.server() {
                span.set("http.response.status_code", status.as_u16());
                span.has_failed = status.is_server_error();
            }
        }
    }

    /// Ends the trace. The exchange ended in order if it `is_whole`.
    pub(crate) fn finish_trace(&mut self, is_whole: bool) {
        let Some(mut trace) = self.event.trace.take() else {
            return;
        };
        let (reason, attempts) = (self.reason(), self.attempts);
        if let Some(span) = trace.server() {
            if attempts > 0 {
                span.set("culvert.attempts", i64::from(attempts));
            }
            let status = span.attributes.iter().find_map(|(name, value)| {
                (*name == "http.response.status_code").then(|| value.clone())
            });
            match (reason, is_whole, status) {
                (Some(reason), ..) => span.set("error.type", reason.name()),
                (None, false, _) => {
                    span.has_failed = true;
                    span.set("error.type", INCOMPLETE);
                }
                (None, true, Some(AttributeValue::Number(status))) if span.has_failed => {
                    span.set("error.type", status.to_string().as_str());
                }
                (None, true, _) => {}
            }
        }
        trace.finish(Instant::now());
    }
}
