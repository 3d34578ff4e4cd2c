//! Runs a phase of a policy, and defines what its actions may read and change.

use std::cell::OnceCell;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use culvert_base::{BoxFuture, Timestamp};
use culvert_cel::{EvalError, EvalErrorKind, Resolver, Slot as Variable, Value, ValueRef};
use culvert_events::{Settable, Slot, Text};
use http::header::{ACCEPT, HeaderValue};
use http::{Response, StatusCode, request, response};
use tokio::time::Instant;

use crate::event::EventDraft;
use crate::event_slots;
use crate::host::{BodyReader, ConnContext, EndpointInfo, NextEndpoint, Reservation, Unread};
use crate::ipdata::IpData;
use crate::policy::compiled::{Policy, Rule};
use crate::policy::edits::Edits;
use crate::policy::phase::Phase;
use crate::policy::values::map;
use crate::policy::variables::{self, Read};
use crate::problem::Problem;
use crate::reply::{self, Rejection, ReplyContext};

/// A compiled action. All exchanges of its endpoint share it.
pub trait Action: Send + Sync + fmt::Debug {
    /// Runs the action, immediately or as a future.
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> Run<'a>;

    /// Whether this action always ends its phase, where others of its type may not.
    fn is_final(&self) -> bool {
        false
    }

    /// Whether it configures TLS handshakes.
    fn terminates_tls(&self) -> bool {
        false
    }

    /// Whether it responds to all traffic if its rule has no conditions.
    fn handles(&self) -> bool {
        false
    }

    /// How many bytes of the request's body it may capture when the response is known.
    fn late_request_bytes(&self) -> Option<usize> {
        None
    }

    /// The variables that its templates read.
    fn slots(&self) -> Vec<Variable> {
        Vec::new()
    }
}

/// The result of an action.
pub enum Run<'a> {
    Done(Flow),
    /// It waits for something.
    Later(BoxFuture<'a, Flow>),
}

impl fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(flow) => f.debug_tuple("Done").field(flow).finish(),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}

/// What follows an action.
#[derive(Debug)]
pub enum Flow {
    /// The next action.
    Continue,
    /// This response to the client.
    Reply(Box<Response<Bytes>>),
    /// Another endpoint of the account.
    Forward(NextEndpoint),
    /// The end of the connection.
    Close,
    /// Nothing: the client aborted the request.
    Broken,
}

impl From<Flow> for Run<'_> {
    fn from(flow: Flow) -> Self {
        Self::Done(flow)
    }
}

/// One phase of one connection or exchange: what expressions read and actions change.
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
    /// Whether its connection counts as TLS though there is none.
    pub(crate) is_tls_assumed: bool,
    /// The values computed so far, in the order of the slots that the policy reads.
    values: Box<[OnceCell<Value>]>,
    /// The first failure of a template in the action that runs.
    failure: Option<EvalError>,
    /// The IP data of this phase, if the policy reads any.
    ip_data: Option<Arc<IpData>>,
    /// Whether a template referred to an object that does not exist.
    is_missing: bool,
}

/// The state of an exchange that outlives a phase.
#[derive(Debug)]
pub struct Memory {
    /// When the exchange began.
    pub began: Timestamp,
    /// Variables of `set-vars`, for the rest of the phase.
    pub vars: Vec<(String, Value)>,
    results: Vec<(&'static str, Value)>,
    /// How many endpoints it has passed before this one.
    pub hops: usize,
    /// Whether a policy makes the request, and not the client.
    pub is_call: bool,
    /// The memory that the result of a call occupies.
    pub(crate) call_room: Option<Reservation>,
    /// Cookies that the response sets, even if another action replaces it.
    pub cookies: Vec<HeaderValue>,
    /// Notified of the upstream's status.
    watches: Vec<Box<dyn Watch>>,
}

/// Receives the status of the upstream. It is dropped without a call if the request failed for a reason that is
/// not the upstream's.
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
            failure: None,
            ip_data: None,
            is_missing: false,
        }
    }

    /// Runs the rules of the phase.
    pub async fn run(&mut self) -> Flow {
        let policy = self.policy;
        if !policy.ip_fields().is_empty() {
            let data = self.conn.services.ip_data.now();
            // The data existed when the policy was written. Without it no rule can be evaluated.
            if !data.missing(policy.ip_fields()).is_empty() {
                self.conn.services.meters.failures.up();
                tracing::debug!(
                    endpoint.id = %self.endpoint.id,
                    "a traffic policy rejects traffic: data that it uses is not loaded"
                );
                return self.fault();
            }
            self.ip_data = Some(data);
        }
        if self.phase == Phase::Request
            && self.wants_results()
            && let Some(result) = self.handshake_result()
        {
            self.memory.results.push(("terminate_tls", result));
        }
        for rule in policy.rules(self.phase) {
            match self.holds(rule) {
                Some(true) => {}
                Some(false) => continue,
                None => return self.fault(),
            }
            for action in &rule.actions {
                self.failure = None;
                let flow = match action.run(self) {
                    Run::Done(flow) => flow,
                    Run::Later(flow) => flow.await,
                };
                // A value that lacks its secret must not be sent.
                if self.is_missing {
                    return self.fault();
                }
                if !matches!(flow, Flow::Continue) {
                    return flow;
                }
            }
        }
        Flow::Continue
    }

    /// Whether a rule applies. An expression that fails is no match. It is `None`, which refuses the connection or
    /// request, where the edge is set to refuse what it cannot decide, where the expression names an object that
    /// does not exist, and for every rule that holds `terminate-tls`: a rule that asks for client certificates must
    /// not be skipped by mistake.
    fn holds(&self, rule: &Rule) -> Option<bool> {
        for expression in &rule.expressions {
            match expression.test(self) {
                Ok(true) => {}
                Ok(false) => return Some(false),
                Err(error) => {
                    rule.failures.up();
                    self.conn.services.meters.failures.up();
                    tracing::debug!(
                        endpoint.id = %self.endpoint.id,
                        rule = rule.name,
                        %error,
                        "an expression of a traffic policy failed"
                    );
                    let refuses = self.conn.refuses_undecided
                        || rule.terminates_tls
                        || error.kind == EvalErrorKind::Missing;
                    return if refuses { None } else { Some(false) };
                }
            }
        }
        Some(true)
    }

    /// Ends the phase because of an internal error.
    pub fn fault(&self) -> Flow {
        self.refuse(Problem::Policy)
    }

    /// Ends the phase with a response of the edge; a connection is closed.
    pub fn refuse(&self, problem: Problem) -> Flow {
        match self.reply_context() {
            Some(to) => Flow::Reply(Box::new(problem.answer(&to))),
            None => Flow::Close,
        }
    }

    /// What responses of the edge depend on; `None` without a request.
    pub fn reply_context(&self) -> Option<ReplyContext<'_>> {
        let request = self.request?;
        Some(ReplyContext {
            info: self.conn.info,
            counters: self.conn.counters,
            pages: self.conn.error_pages,
            accept: request.headers.get(ACCEPT),
            host: reply::host(&request.uri, &request.headers),
        })
    }

    /// Ends the phase with a rejection that an action defines; a connection is closed.
    pub(crate) fn reject(&self, status: StatusCode, rejection: &Rejection) -> Flow {
        match self.reply_context() {
            Some(to) => Flow::Reply(Box::new(rejection.answer(status, &to))),
            None => Flow::Close,
        }
    }

    /// Buffers the whole body of the request, which is forwarded unchanged. The rest of the phase waits for it. If
    /// the body cannot be read, the phase ends.
    pub(crate) async fn read_body(&mut self, bytes_max: usize) -> Result<Bytes, Flow> {
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

    /// Sets a field of the exchange's event.
    pub fn tell<T: Settable>(&mut self, slot: Slot<T>, value: T::In<'_>) {
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
    pub(crate) fn tell_admitted(&mut self, is_admitted: bool) {
        let decision = if is_admitted { "allow" } else { "block" };
        if self.phase == Phase::Connect {
            self.conn.state.decide(decision);
        } else {
            self.decide(event_slots::IP_POLICY_DECISION, decision);
        }
    }

    /// Keeps the result of an action, for later expressions.
    pub fn result(&mut self, action: &'static str, fields: Vec<(&str, Value)>) {
        if !self.policy.reads_results() {
            return;
        }
        let value = map(fields);
        let results = &mut self.memory.results;
        match results.iter_mut().find(|(name, _)| *name == action) {
            Some((_, known)) => *known = value,
            None => results.push((action, value)),
        }
        self.forget(variables::ACTIONS);
    }

    /// Whether any expression of the policy reads results of actions.
    pub fn wants_results(&self) -> bool {
        self.policy.reads_results()
    }

    /// Sets a variable of the phase.
    pub(crate) fn set_var(&mut self, name: &str, value: Value) {
        let vars = &mut self.memory.vars;
        match vars.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value,
            None => vars.push((name.to_owned(), value)),
        }
        self.forget(variables::VARS);
    }

    /// Records that a template failed.
    pub fn failed(&mut self, error: &EvalError) {
        self.conn.services.meters.failures.up();
        self.is_missing |= error.kind == EvalErrorKind::Missing;
        self.failure.get_or_insert(*error);
    }

    /// The first failure of a template in this action, for its result.
    pub fn error(&self) -> (&'static str, Value) {
        let message = self.failure.map(|error| error.to_string());
        let fields = vec![
            ("code", Value::from("")),
            (
                "message",
                Value::from(message.as_deref().unwrap_or_default()),
            ),
        ];
        ("error", map(fields))
    }

    /// Reads the data of the operator.
    pub(crate) fn with_ip_data<R>(&self, read: impl FnOnce(&IpData) -> R) -> R {
        match &self.ip_data {
            Some(data) => read(data),
            None => read(&self.conn.services.ip_data.now()),
        }
    }

    /// When the request's body was complete, if it is.
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

    fn forget(&mut self, path: &str) {
        let slot = variables::slot(path);
        let cell = self.policy.cell(slot);
        if let Some(cell) = cell.and_then(|cell| self.values.get_mut(cell)) {
            cell.take();
        }
    }
}

impl Resolver for Exchange<'_> {
    fn value(&self, slot: Variable) -> Option<ValueRef<'_>> {
        let cell = self.values.get(self.policy.cell(slot)?)?;
        if let Some(value) = cell.get() {
            return Some(value.borrow());
        }
        match variables::read(slot, self)? {
            Read::There(value) => Some(value),
            Read::Made(value) => Some(cell.get_or_init(|| value).borrow()),
        }
    }
}
