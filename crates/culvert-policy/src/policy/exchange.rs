//! The inputs of a phase's expressions, and the state that its actions read and change.

use std::cell::{Cell, OnceCell};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use culvert_base::{Share, Timestamp};
use culvert_cel::{EvalError, EvalErrorKind, Value};
use culvert_events::{Settable, Slot, Text};
use http::header::{ACCEPT, HeaderName, HeaderValue};
use http::{StatusCode, request, response};
use tokio::time::Instant;

use crate::event::event_slots;
use crate::event::{EventDraft, Hidden};
use crate::policy::compiled::Policy;
use crate::policy::edits::Edits;
use crate::policy::phase::Phase;
use crate::policy::run::Flow;
use crate::policy::values::{check_size, map};
use crate::ports::host::{BodyReader, ConnContext, EndpointInfo, Reservation, Unread};
use crate::response::problem::Problem;
use crate::response::reply::{self, Rejection, ReplyContext};
use culvert_ip_data::IpData;

/// One phase of one connection or exchange: the inputs of expressions and the changes of actions.
#[derive(Debug)]
pub struct Exchange<'x> {
    /// The phase that runs.
    pub phase: Phase,
    /// The policy that runs.
    pub policy: &'x Policy,
    /// The endpoint of the policy.
    pub endpoint: EndpointInfo<'x>,
    /// The connection.
    pub conn: ConnContext<'x>,
    /// The request as received.
    pub request: Option<&'x request::Parts>,
    /// Its body, in the request phase.
    pub body: Option<&'x mut dyn BodyReader>,
    /// When its whole body had arrived, in the response phase.
    pub body_whole_at: Option<Instant>,
    /// The response as received, or as the edge made it.
    pub response: Option<&'x response::Parts>,
    /// The event of the exchange; connections have none.
    pub event: Option<&'x mut EventDraft>,
    /// The state that outlives the phase.
    pub memory: &'x mut Memory,
    /// The changes to the head of the request or the response, depending on the phase.
    pub edits: Edits,
    /// Whether its connection counts as TLS without a handshake.
    pub(crate) is_tls_assumed: bool,
    /// The values computed so far, in the order of the slots that the policy reads.
    pub(super) values: Box<[OnceCell<Value>]>,
    /// The first failure of an expression in the action that runs.
    pub(super) failure: Cell<Option<EvalError>>,
    /// Why the request must be rejected after the action that runs, whatever the action does.
    pub(super) undecidable: Cell<Option<Problem>>,
    /// The IP data of this phase, if the policy reads any.
    pub(super) ip_data: Option<Arc<IpData>>,
}

/// Why an error of an expression rejects the request, whatever its rule does. `None` for other errors.
pub(super) fn undecidable(error: &EvalError) -> Option<Problem> {
    match error.kind {
        kind if kind.is_limit() => Some(Problem::PolicyLimit),
        EvalErrorKind::Missing => Some(Problem::Policy),
        _ => None,
    }
}

/// The state of an exchange that outlives a phase.
#[derive(Debug)]
pub struct Memory {
    /// When the exchange began.
    pub began: Timestamp,
    /// Variables of `set-vars`, for the rest of the phase.
    pub vars: Vec<(String, Value)>,
    pub(super) results: Vec<(&'static str, Value)>,
    /// Number of endpoints that forwarded it.
    pub hops: usize,
    /// Whether a policy makes the request, and not the client.
    pub is_call: bool,
    /// The memory that the result of a call occupies.
    pub call_room: Option<Reservation>,
    /// Cookies that the response sets, even if another action replaces it.
    pub cookies: Vec<HeaderValue>,
    /// Notified of the upstream's status.
    watches: Vec<Box<dyn Watch>>,
}

/// Receives the status of the upstream. It is dropped without a call if the request failed for a reason unrelated to
/// the upstream.
pub trait Watch: Send + fmt::Debug {
    /// The status of the upstream's response; `None` if the response was invalid or missing.
    fn answered(&mut self, status: Option<StatusCode>);
}

impl Memory {
    /// The memory of an exchange that began at this time.
    pub fn new(began: Timestamp) -> Self {
        Self {
            began,
            vars: Vec::new(),
            results: Vec::new(),
            hops: 0,
            is_call: false,
            call_room: None,
            cookies: Vec::new(),
            watches: Vec::new(),
        }
    }

    /// Registers for the upstream's status.
    pub fn watch(&mut self, watch: Box<dyn Watch>) {
        self.watches.push(watch);
    }

    /// Reports the upstream's status; `None` if it failed.
    pub fn answered(&mut self, status: Option<StatusCode>) {
        for mut watch in self.watches.drain(..) {
            watch.answered(status);
        }
    }

    /// The variable `actions`.
    pub fn results(&self) -> Value {
        let results = map(self
            .results
            .iter()
            .map(|(name, value)| (*name, value.clone()))
            .collect());
        map(vec![("culvert", results.clone()), ("ngrok", results)])
    }
}

impl<'x> Exchange<'x> {
    /// Prepares a phase.
    pub fn new(
        phase: Phase,
        policy: &'x Policy,
        endpoint: EndpointInfo<'x>,
        conn: ConnContext<'x>,
        memory: &'x mut Memory,
    ) -> Self {
        memory.vars.clear();
        Self {
            phase,
            policy,
            endpoint,
            conn,
            request: None,
            body: None,
            body_whole_at: None,
            response: None,
            event: None,
            memory,
            edits: Edits::default(),
            is_tls_assumed: false,
            values: policy.reads().iter().map(|_| OnceCell::new()).collect(),
            failure: Cell::default(),
            undecidable: Cell::default(),
            ip_data: None,
        }
    }

    /// Ends the phase because of an internal error.
    pub fn fault(&self) -> Flow {
        self.refuse(Problem::Policy)
    }

    /// Ends the phase with a response of the edge; a connection is closed.
    pub fn refuse(&self, problem: Problem) -> Flow {
        if let (Some(event), Some(reason)) = (&self.event, problem.reason()) {
            event.note_reason(reason);
        }
        match self.reply_context() {
            Some(to) => Flow::Reply(Box::new(problem.answer(&to))),
            None => Flow::Close,
        }
    }

    /// The inputs of the edge's responses; `None` without a request.
    pub fn reply_context(&self) -> Option<ReplyContext<'_>> {
        let request = self.request?;
        Some(ReplyContext {
            info: self.conn.info,
            counters: self.conn.counters,
            pages: self.conn.error_pages,
            accept: request.headers.get(ACCEPT),
            host: reply::host(&request.uri, &request.headers),
            cause: self.event.as_ref().and_then(|event| event.reason()),
        })
    }

    /// Ends the phase with a rejection that an action defines; a connection is closed.
    pub fn reject(&self, status: StatusCode, rejection: &Rejection) -> Flow {
        match self.reply_context() {
            Some(to) => Flow::Reply(Box::new(rejection.answer(status, &to))),
            None => Flow::Close,
        }
    }

    /// Buffers the whole body of the request, which is forwarded unchanged. The rest of the phase waits for it. If
    /// the body cannot be read, the phase ends.
    pub async fn read_body(&mut self, bytes_max: usize) -> Result<Bytes, Flow> {
        let Some(body) = &mut self.body else {
            return Ok(Bytes::new());
        };
        let read = body.read(bytes_max).await;
        read.map_err(|why| match why {
            Unread::Problem(problem) => self.refuse(problem),
            Unread::Broken => Flow::Broken,
        })
    }

    /// Adds an entry to the log of the event.
    pub fn log(&mut self, entry: serde_json::Map<String, serde_json::Value>) {
        if self.phase == Phase::Connect {
            self.conn.state.log(entry);
        } else if let Some(event) = &mut self.event {
            event.log(entry);
        }
    }

    /// Hides a field that came from a secret: of the request that the next endpoint gets, or of the response, depending
    /// on the phase.
    pub fn hide_field(&mut self, name: &HeaderName) {
        let is_request = self.phase != Phase::Response;
        if let Some(event) = &mut self.event {
            let hidden = event.hide();
            let fields = match is_request {
                true => &mut hidden.request_fields,
                false => &mut hidden.response_fields,
            };
            fields.push(name.clone());
        }
    }

    /// Hides what this does to the exchange, which came from a secret, in events and captures.
    pub fn hide(&mut self, hide: impl FnOnce(&mut Hidden)) {
        if let Some(event) = &mut self.event {
            hide(event.hide());
        }
    }

    /// Sets a field of the exchange's event.
    pub fn set_field<T: Settable>(&mut self, slot: Slot<T>, value: T::In<'_>) {
        if let Some(event) = &mut self.event {
            event.set(slot, value);
        }
    }

    /// Records the decision of a module that may run more than once. A block is final.
    fn decide(&mut self, slot: Slot<Text>, decision: &str) {
        if let Some(event) = &mut self.event {
            event.decide(slot, decision);
        }
    }

    /// Records the decision of IP policies. For a connection of an HTTP endpoint, each request's event has it.
    pub fn tell_admitted(&mut self, is_admitted: bool) {
        let decision = if is_admitted { "allow" } else { "block" };
        if self.phase == Phase::Connect {
            self.conn.state.decide(decision);
        } else {
            self.decide(event_slots::IP_POLICY_DECISION, decision);
        }
    }

    /// Keeps the result of an action, for later expressions.
    pub fn result(&mut self, action: &'static str, fields: Vec<(&str, Value)>) {
        let Some(cell) = self.policy.results_cell() else {
            return;
        };
        let value = map(fields);
        // A result may contain that of an earlier action, so it can grow with each action.
        if check_size(value.borrow()).is_err() {
            self.limit_reached();
            return;
        }
        let results = &mut self.memory.results;
        match results.iter_mut().find(|(name, _)| *name == action) {
            Some((_, known)) => *known = value,
            None => results.push((action, value)),
        }
        self.forget(cell);
    }

    /// Whether any expression of the policy reads results of actions.
    pub fn wants_results(&self) -> bool {
        self.policy.results_cell().is_some()
    }

    /// Sets a variable of the phase.
    pub fn set_var(&mut self, name: &str, value: Value) {
        let vars = &mut self.memory.vars;
        match vars.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value,
            None => vars.push((name.to_owned(), value)),
        }
        if let Some(cell) = self.policy.vars_cell() {
            self.forget(cell);
        }
    }

    /// Records that an expression of the action that runs failed. If it reached a limit of evaluation, or refers to an
    /// object that does not exist, the request is rejected after the action.
    pub(super) fn failed(&self, error: &EvalError) {
        self.conn.services.meters.failures.up();
        if self.failure.get().is_none() {
            self.failure.set(Some(*error));
        }
        if let Some(problem) = undecidable(error) {
            self.reject_later(problem);
        }
    }

    /// Records that the action that runs has reached a limit that a visitor can reach at will. The request is rejected
    /// after the action, whatever the action does: a limit never decides.
    pub fn limit_reached(&self) {
        self.conn.services.meters.failures.up();
        self.reject_later(Problem::PolicyLimit);
    }

    fn reject_later(&self, problem: Problem) {
        if self.undecidable.get().is_none() {
            self.undecidable.set(Some(problem));
        }
    }

    /// Whether the request will be rejected after the action that runs. An action with effects outside of the exchange
    /// checks it before them.
    pub fn is_undecidable(&self) -> bool {
        self.undecidable.get().is_some()
    }

    /// The share of limited resources that the exchange uses.
    pub fn share(&self) -> Share {
        Share::new(self.policy.owner(), self.endpoint.id)
    }

    /// The first failure of a template in this action, for its result.
    pub fn error(&self) -> (&'static str, Value) {
        let message = self.failure.get().map(|error| error.to_string());
        let fields = vec![
            ("code", Value::from("")),
            (
                "message",
                Value::from(message.as_deref().unwrap_or_default()),
            ),
        ];
        ("error", map(fields))
    }

    /// Reads the IP data.
    pub(crate) fn with_ip_data<R>(&self, read: impl FnOnce(&IpData) -> R) -> R {
        match &self.ip_data {
            Some(data) => read(data),
            None => read(&self.conn.services.ip_data.now()),
        }
    }

    /// When the request's body was complete; `None` before.
    pub fn body_received(&self) -> Option<Timestamp> {
        let since = self.body_whole_at?.elapsed();
        let since = i64::try_from(since.as_nanos()).ok()?;
        let now = self.conn.info.now().unix_nanos();
        Some(Timestamp::from_unix_nanos(now.saturating_sub(since)))
    }

    /// 63 random bits.
    pub fn random(&self) -> u64 {
        u64::from_le_bytes(self.conn.services.entropy.bytes()) >> 1
    }

    /// Computes a variable again at its next reading.
    fn forget(&mut self, cell: usize) {
        if let Some(cell) = self.values.get_mut(cell) {
            cell.take();
        }
    }
}
