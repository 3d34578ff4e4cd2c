//! A policy at work: what an action may see and change, and how a phase runs.

use std::cell::OnceCell;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use culvert_base::{BoxFuture, Timestamp};
use culvert_cel::{EvalError, EvalErrorKind, Resolver, Slot as Variable, Value, ValueRef};
use culvert_events::{Settable, Slot, Text};
use culvert_http::coding::Coding;
use culvert_policy::ipdata::IpData;
use culvert_tls::terms::Terms;
use http::header::{ACCEPT, HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Response, Uri, request, response};

use crate::downstream::Downstream;
use crate::http::body::Upload;
use crate::http::reply::Problem;
use crate::http::room::Room;
use crate::policy::replace::Replacement;
use crate::policy::template::map;
use crate::policy::variables::{self, Read};
use crate::policy::{Phase, Policy, Rule};
use crate::recording::Recording;
use crate::slots;
use crate::snapshot::{Endpoint, Member};

/// What an action is made to do. It is shared by all exchanges of its endpoint.
pub(crate) trait Action: Send + Sync + fmt::Debug {
    /// Does it, at once or later.
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> Run<'a>;

    /// Whether it always ends its phase, although others of its type may not.
    fn is_final(&self) -> bool {
        false
    }

    /// Whether it says how a TLS handshake is done.
    fn terminates_tls(&self) -> bool {
        false
    }

    /// Whether, run without conditions, it answers all traffic although it may let some pass.
    fn handles(&self) -> bool {
        false
    }

    /// The variables its templates read.
    fn slots(&self) -> Vec<Variable> {
        Vec::new()
    }
}

/// What an action gives.
pub(crate) enum Run<'a> {
    Done(Flow),
    /// It has to wait for something.
    Later(BoxFuture<'a, Flow>),
}

/// Where an exchange goes from here.
#[derive(Debug)]
pub(crate) enum Flow {
    /// To the next action.
    Continue,
    /// Back to the client, with this answer.
    Reply(Box<Response<Bytes>>),
    /// To another endpoint of the account.
    Forward(Arc<Member>),
    /// Nowhere: the connection is closed.
    Close,
    /// Nowhere: the client broke the request off.
    Broken,
}

impl From<Flow> for Run<'_> {
    fn from(flow: Flow) -> Self {
        Self::Done(flow)
    }
}

/// One phase of one connection or exchange: what expressions read and actions work on.
#[derive(Debug)]
pub(crate) struct Exchange<'x> {
    pub(crate) phase: Phase,
    pub(crate) policy: &'x Policy,
    pub(crate) endpoint: &'x Endpoint,
    pub(crate) down: &'x Arc<Downstream>,
    /// The request as received.
    pub(crate) request: Option<&'x request::Parts>,
    /// Its body, in the request phase.
    pub(crate) body: Option<&'x mut Upload>,
    /// The response as received, or as the edge made it.
    pub(crate) response: Option<&'x response::Parts>,
    /// The event of the exchange; a connection has none of its own yet.
    pub(crate) recording: Option<&'x mut Recording>,
    pub(crate) memory: &'x mut Memory,
    /// What is to be changed before it is sent on: the request's or the response's head, by phase.
    pub(crate) edits: Edits,
    /// The values made so far, in the order of the slots that the policy reads.
    values: Box<[OnceCell<Value>]>,
    /// The first failure of a template in the action that runs.
    failure: Option<EvalError>,
    /// The data of the operator, the same for the whole phase, if the policy reads any.
    ip_data: Option<Arc<IpData>>,
    /// Whether a template named an object that does not exist.
    is_missing: bool,
}

/// What lasts from phase to phase of one exchange.
#[derive(Debug)]
pub(crate) struct Memory {
    /// When it began.
    pub(crate) began: Timestamp,
    /// Set by set-vars, for the rest of the phase.
    pub(crate) vars: Vec<(String, Value)>,
    results: Vec<(&'static str, Value)>,
    /// Endpoints that it passed before this one.
    pub(crate) hops: usize,
    /// Whether the request is made by a policy rather than by a client.
    pub(crate) is_call: bool,
    /// What the result of a call takes of the memory for bodies.
    pub(crate) call_room: Option<Room>,
    /// Cookies that the answer sets, whatever it is.
    pub(crate) cookies: Vec<HeaderValue>,
    /// Told what the upstream made of the request.
    watches: Vec<Box<dyn Watch>>,
}

/// An action that wants to know what the upstream answered. One that is dropped without a word was
/// never answered for a reason that is not the upstream's.
pub(crate) trait Watch: Send + fmt::Debug {
    /// The status of the upstream's answer, `None` if it gave no valid one.
    fn answered(&mut self, status: Option<http::StatusCode>);
}

impl Memory {
    pub(crate) fn new(began: Timestamp) -> Self {
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

    /// Asks to be told what the upstream answers.
    pub(crate) fn watch(&mut self, watch: Box<dyn Watch>) {
        self.watches.push(watch);
    }

    /// The upstream answered, or failed to.
    pub(crate) fn answered(&mut self, status: Option<http::StatusCode>) {
        for mut watch in self.watches.drain(..) {
            watch.answered(status);
        }
    }

    /// The variable `actions`.
    pub(crate) fn results(&self) -> Value {
        let results = map(self
            .results
            .iter()
            .map(|(name, value)| (*name, value.clone()))
            .collect());
        map(vec![("culvert", results.clone()), ("ngrok", results)])
    }
}

/// Changes to the head of a message.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    headers: Vec<Edit>,
    /// Another target for the upstream, and the whole URL it is of.
    pub(crate) target: Option<Uri>,
    pub(crate) url: Option<String>,
    /// How the handshake is to be done, in the connection phase.
    pub(crate) terms: Option<Arc<Terms>>,
    /// What is to be replaced in the body.
    pub(crate) replacements: Vec<Replacement>,
    /// How the response's body is to be encoded.
    pub(crate) coding: Option<Coding>,
}

#[derive(Debug)]
enum Edit {
    Add(HeaderName, HeaderValue),
    Remove(HeaderName),
}

impl Edits {
    pub(crate) fn add(&mut self, name: HeaderName, value: HeaderValue) {
        self.headers.push(Edit::Add(name, value));
    }

    pub(crate) fn remove(&mut self, name: HeaderName) {
        self.headers.push(Edit::Remove(name));
    }

    /// Makes the changes to the fields of a request, which has no other spelling of them afterwards.
    pub(crate) fn apply_to_request(&mut self, headers: &mut HeaderMap) {
        let names = self.headers.iter().map(|edit| match edit {
            Edit::Add(name, _) | Edit::Remove(name) => name,
        });
        culvert_http::fields::strip_spellings(headers, names);
        self.apply(headers);
    }

    /// Makes the changes to the fields, in their order. A message has one host.
    pub(crate) fn apply(&mut self, headers: &mut HeaderMap) {
        for edit in self.headers.drain(..) {
            match edit {
                Edit::Add(name, value) if name == HOST => {
                    headers.insert(name, value);
                }
                Edit::Add(name, value) => {
                    headers.append(name, value);
                }
                Edit::Remove(name) => {
                    headers.remove(name);
                }
            }
        }
    }
}

impl<'x> Exchange<'x> {
    pub(crate) fn new(
        phase: Phase,
        policy: &'x Policy,
        endpoint: &'x Endpoint,
        down: &'x Arc<Downstream>,
        memory: &'x mut Memory,
    ) -> Self {
        memory.vars.clear();
        Self {
            phase,
            policy,
            endpoint,
            down,
            request: None,
            body: None,
            response: None,
            recording: None,
            memory,
            edits: Edits::default(),
            values: policy.reads().iter().map(|_| OnceCell::new()).collect(),
            failure: None,
            ip_data: None,
            is_missing: false,
        }
    }

    /// Runs the rules of the phase.
    pub(crate) async fn run(&mut self) -> Flow {
        let policy = self.policy;
        if !policy.ip_fields().is_empty() {
            let data = self.down.edge.ip_data.now();
            // It was there when the policy was written. Without it no rule can be decided.
            if !data.missing(policy.ip_fields()).is_empty() {
                self.down.edge.meters.policy_failures.up();
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
                // What was made without a secret that it needs goes no further.
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
                    self.down.edge.meters.policy_failures.up();
                    tracing::debug!(
                        endpoint.id = %self.endpoint.id,
                        rule = rule.name,
                        %error,
                        "an expression of a traffic policy failed"
                    );
                    let refuses = self.down.rules.refuses_undecided
                        || rule.terminates_tls
                        || error.kind == EvalErrorKind::Missing;
                    return if refuses { None } else { Some(false) };
                }
            }
        }
        Some(true)
    }

    /// Ends the phase because something of ours went wrong.
    pub(crate) fn fault(&self) -> Flow {
        self.refuse(Problem::Policy)
    }

    /// Ends the phase with an answer of the edge; a connection is closed.
    pub(crate) fn refuse(&self, problem: Problem) -> Flow {
        let Some(request) = self.request else {
            return Flow::Close;
        };
        let answer = problem.answer(request.headers.get(ACCEPT), self.down);
        Flow::Reply(Box::new(answer))
    }

    /// The whole body of the request, which is sent on as it is. The rest of the phase waits for it;
    /// one that cannot be had ends the phase.
    pub(crate) async fn read_body(&mut self, bytes_max: usize) -> Result<Bytes, Flow> {
        let Some(body) = &mut self.body else {
            return Ok(Bytes::new());
        };
        let most = usize::try_from(self.down.rules.limits.body_bytes).unwrap_or(usize::MAX);
        let bytes_max = bytes_max.min(most);
        let recording = &mut self.recording;
        let received = || recording.as_mut()?.count_received();
        let held = body.hold(bytes_max, self.down, received).await;
        held.map_err(|why| {
            let problem = why.problem();
            problem.map_or(Flow::Broken, |problem| self.refuse(problem))
        })
    }

    /// Adds an entry to the log of the event.
    pub(crate) fn log(&mut self, entry: serde_json::Map<String, serde_json::Value>) {
        if self.phase == Phase::Connect {
            self.down.policy.log(entry);
        } else if let Some(recording) = &mut self.recording {
            recording.log(entry);
        }
    }

    /// Sets a field of the exchange's event.
    pub(crate) fn tell<T: Settable>(&mut self, slot: Slot<T>, value: T::In<'_>) {
        if let Some(recording) = &mut self.recording {
            recording.set(slot, value);
        }
    }

    /// Says what a module decided that may run more than once: to block is final.
    fn decide(&mut self, slot: Slot<Text>, decision: &str) {
        if let Some(recording) = &mut self.recording {
            recording.decide(slot, decision);
        }
    }

    /// Says what IP policies decided. A connection of an HTTP endpoint says it in each of its
    /// requests.
    pub(crate) fn tell_admitted(&mut self, is_admitted: bool) {
        let decision = if is_admitted { "allow" } else { "block" };
        if self.phase == Phase::Connect {
            self.down.policy.decide(decision);
        } else {
            self.decide(slots::http::IP_POLICY_DECISION, decision);
        }
    }

    /// Keeps what an action says of itself, for the expressions behind it.
    pub(crate) fn result(&mut self, action: &'static str, fields: Vec<(&str, Value)>) {
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

    /// Whether any expression of the policy reads what actions say of themselves.
    pub(crate) fn wants_results(&self) -> bool {
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

    /// Notes that a template failed.
    pub(crate) fn failed(&mut self, error: &EvalError) {
        self.down.edge.meters.policy_failures.up();
        self.is_missing |= error.kind == EvalErrorKind::Missing;
        self.failure.get_or_insert(*error);
    }

    /// The first failure of a template in this action, as its result shows it.
    pub(crate) fn error(&self) -> (&'static str, Value) {
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
            None => read(&self.down.edge.ip_data.now()),
        }
    }

    /// When the request's whole body had arrived, if it has.
    pub(crate) fn body_received(&self) -> Option<Timestamp> {
        let since = self.recording.as_ref()?.upload()?.since_whole()?;
        let since = i64::try_from(since.as_nanos()).ok()?;
        let now = self.down.info.now().unix_nanos();
        Some(Timestamp::from_unix_nanos(now.saturating_sub(since)))
    }

    /// 63 random bits.
    pub(crate) fn random(&self) -> u64 {
        u64::from_le_bytes(self.down.edge.entropy.bytes()) >> 1
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
