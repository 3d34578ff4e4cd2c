//! Runs a phase of a policy: its rules, and the actions of those that match.

use std::any::Any;
use std::fmt;

use bytes::Bytes;
use culvert_base::BoxFuture;
use culvert_cel::{EvalError, Slot};
use http::header::HeaderName;
use http::{Response, request};
use tokio::time::Instant;

use crate::policy::compiled::Rule;
use crate::policy::exchange::{Exchange, undecidable};
use crate::policy::handshake;
use crate::policy::phase::Phase;
use crate::ports::host::NextEndpoint;
use crate::response::problem::Problem;

/// Paths below this one belong to the edge at an endpoint whose policy has an action with [`EdgePaths`].
pub const EDGE_PATHS: &str = "/culvert/";
/// The path of the key set at an endpoint whose policy makes assertions.
pub const KEY_SET_PATH: &str = "/culvert/jwks.json";

/// The part of an action that handles requests to paths of the edge. It runs before all rules of its policy, whatever
/// the conditions of the action's rule are. Such requests are never forwarded.
pub trait EdgePaths: Any + Send + Sync + fmt::Debug {
    /// Whether this action handles a request to a path below [`EDGE_PATHS`]. The first that does is the one.
    fn answers(&self, request: &request::Parts) -> bool;

    /// Handles the request. No rule has run, so expressions know no `vars` and no results of `actions`. A flow that
    /// would forward the request refuses it.
    fn answer<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a>;
}

/// A compiled action. All exchanges of its endpoint share it.
pub trait Action: Send + Sync + fmt::Debug {
    /// Runs the action, immediately or as a future.
    fn run<'a>(&'a self, x: &'a mut Exchange<'_>) -> ActionResult<'a>;

    /// Whether this action always ends its phase, even if others of its type do not.
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

    /// The paths of the edge that it handles, if there are any.
    fn edge_paths(&self) -> Option<&dyn EdgePaths> {
        None
    }

    /// A probable mistake in its configuration, as a sentence without a full stop.
    fn warning(&self) -> Option<&'static str> {
        None
    }

    /// Names of header fields to which it adds further ones.
    fn adds(&self) -> Vec<&HeaderName> {
        Vec::new()
    }

    /// Names of header fields that it sets or removes, so that none of the client's is left.
    fn replaces(&self) -> Vec<&HeaderName> {
        Vec::new()
    }

    /// Names of the fields by which it tells the upstream who the user is.
    fn identity_fields(&self) -> Vec<&HeaderName> {
        Vec::new()
    }

    /// The part that publishes the keys of its assertions, if it makes any.
    fn key_set(&self) -> Option<&dyn EdgePaths> {
        None
    }

    /// The variables that its templates read.
    fn slots(&self) -> Vec<Slot> {
        Vec::new()
    }
}

/// The result of an action. Most actions finish immediately, and need no boxed future.
pub enum ActionResult<'a> {
    /// It has finished.
    Done(Flow),
    /// It waits for something.
    Later(BoxFuture<'a, Flow>),
}

impl fmt::Debug for ActionResult<'_> {
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

impl Flow {
    /// What it means for the request, for traces.
    pub(super) fn trace_result(&self) -> String {
        match self {
            Self::Continue => "continue".to_owned(),
            Self::Reply(reply) => format!("respond {}", reply.status().as_u16()),
            Self::Forward(_) => "forward".to_owned(),
            Self::Close => "close".to_owned(),
            Self::Broken => "client left".to_owned(),
        }
    }
}

impl From<Flow> for ActionResult<'_> {
    fn from(flow: Flow) -> Self {
        Self::Done(flow)
    }
}

impl Exchange<'_> {
    /// Runs the rules of the phase.
    pub async fn run(&mut self) -> Flow {
        let policy = self.policy;
        if !self.may_use_secrets() {
            return self.refuse(Problem::SecretsWithdrawn);
        }
        if !self.loads_ip_data() {
            return self.fault();
        }
        // The handshake ended before this exchange began, so the result of `terminate-tls` is added here.
        if self.phase == Phase::Request
            && self.wants_results()
            && let Some(result) = handshake::result(self.conn.info, self.error())
        {
            self.memory.results.push(("terminate_tls", result));
        }
        for rule in policy.rules(self.phase) {
            match self.judge(rule) {
                Verdict::Match => {}
                Verdict::NoMatch => continue,
                Verdict::Reject(problem) => return self.reject_undecided(rule, problem),
            }
            for (at, action) in rule.actions.iter().enumerate() {
                self.failure.set(None);
                let clock = self.action_clock();
                let (flow, has_waited) = match action.run(self) {
                    ActionResult::Done(flow) => (flow, false),
                    ActionResult::Later(flow) => (flow.await, true),
                };
                if let Some(began) = clock {
                    let name = rule.types.get(at).map_or("", |(name, _)| name);
                    self.note_action((name, &rule.name), (began, has_waited), &flow);
                }
                if let Some(problem) = self.undecidable.take() {
                    return self.reject_undecided(rule, problem);
                }
                if !matches!(flow, Flow::Continue) {
                    return flow;
                }
            }
        }
        Flow::Continue
    }

    /// When an action begins, if the request is recorded.
    fn action_clock(&self) -> Option<Instant> {
        let trace = self.event.as_ref()?.trace.as_ref()?;
        trace.is_recorded().then(Instant::now)
    }

    /// Notes an action that has run. One that `has_waited` has a separate span.
    #[cold]
    fn note_action(
        &mut self,
        (name, rule): (&'static str, &str),
        (began, has_waited): (Instant, bool),
        flow: &Flow,
    ) {
        let event = self.event.as_mut();
        let Some(trace) = event.and_then(|event| event.trace.as_mut()) else {
            return;
        };
        let result = flow.trace_result();
        if has_waited && let Some(span) = trace.step(name, began, Instant::now()) {
            span.set("culvert.policy.action", name);
            if !rule.is_empty() {
                span.set("culvert.policy.rule", rule);
            }
            span.set("culvert.policy.result", result.as_str());
        }
        trace.note(format!("{name}: {result}"));
    }

    /// Handles a request to a path of the edge. `None` if the path is not the edge's.
    pub async fn answer_edge_path(&mut self) -> Option<Flow> {
        let (policy, request) = (self.policy, self.request?);
        if !policy.owns_path(request.uri.path()) {
            return None;
        }
        if !self.may_use_secrets() {
            return Some(self.refuse(Problem::SecretsWithdrawn));
        }
        if !self.loads_ip_data() {
            return Some(self.fault());
        }
        let mut actions = policy.edge_paths();
        let Some(action) = actions.find(|action| action.answers(request)) else {
            return Some(self.refuse(Problem::EdgePath));
        };
        self.failure.set(None);
        let flow = match action.answer(self) {
            ActionResult::Done(flow) => flow,
            ActionResult::Later(flow) => flow.await,
        };
        if let Some(problem) = self.undecidable.take() {
            self.conn.services.meters.refusals.up();
            return Some(self.refuse(problem));
        }
        Some(match flow {
            Flow::Continue | Flow::Forward(_) => self.refuse(Problem::EdgePath),
            flow => flow,
        })
    }

    /// Whether the policy may use the secrets that it names. If not, it does nothing.
    pub fn may_use_secrets(&self) -> bool {
        let secrets = self.policy.secrets.as_ref();
        secrets.is_none_or(|secrets| !secrets.right.is_withdrawn())
    }

    /// Takes the IP data that the policy reads. False if some of it is not loaded.
    pub(super) fn loads_ip_data(&mut self) -> bool {
        let policy = self.policy;
        if policy.ip_fields().is_empty() {
            return true;
        }
        let data = self.conn.services.ip_data.now();
        // The data existed when the policy was written. Without it, no rule can be evaluated.
        if !data.missing(policy.ip_fields()).is_empty() {
            self.conn.services.meters.failures.up();
            self.conn.services.meters.refusals.up();
            tracing::debug!(
                endpoint.id = %self.endpoint.id,
                "a traffic policy rejects traffic: data that it uses is not loaded"
            );
            return false;
        }
        self.ip_data = Some(data);
        true
    }

    /// Whether a rule applies. An expression that is false decides, even if another one fails.
    fn judge(&self, rule: &Rule) -> Verdict {
        let mut outcome = Verdict::Match;
        for expression in &rule.expressions {
            let error = match expression.test(self) {
                Ok(true) => continue,
                Ok(false) => return Verdict::NoMatch,
                Err(error) => error,
            };
            rule.failures.up();
            self.conn.services.meters.failures.up();
            tracing::debug!(
                endpoint.id = %self.endpoint.id,
                rule = rule.name,
                %error,
                "an expression of a traffic policy failed"
            );
            let verdict = self.conn.on_expression_error.verdict(rule, &error);
            // A limit rejects the request, so the other expressions need not be evaluated.
            if error.is_limit() {
                return verdict;
            }
            if !matches!(outcome, Verdict::Reject(_)) {
                outcome = verdict;
            }
        }
        outcome
    }

    /// Rejects the request or connection, because a rule cannot be decided.
    #[cold]
    fn reject_undecided(&self, rule: &Rule, problem: Problem) -> Flow {
        self.conn.services.meters.refusals.up();
        let is_first = rule.refusals.get() == 0;
        rule.refusals.up();
        if is_first {
            tracing::warn!(
                endpoint.id = %self.endpoint.id,
                phase = self.phase.name(),
                rule = rule.name,
                reason = problem.sentence(),
                "a traffic policy rejects traffic that it cannot decide; further cases are only counted"
            );
        }
        self.refuse(problem)
    }
}

/// Whether a rule applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It does.
    Match,
    /// It does not.
    NoMatch,
    /// That is unknown, and the request is rejected.
    Reject(Problem),
}

/// What follows if an expression of a rule fails, and no other expression of the rule is false. Two errors reject the
/// request in any case: a limit of evaluation was reached, or the expression names an object that does not exist.
/// Rules with `terminate-tls` reject too: one that requires client certificates must not be skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExpressionError {
    /// A rule with an action that restricts access ([`guards`](crate::action_type::ActionType::guards)) rejects the
    /// request. Other rules do not apply.
    #[default]
    Auto,
    /// The request is rejected.
    Deny,
    /// The rule does not apply.
    Skip,
}

impl OnExpressionError {
    /// The verdict about a rule with this error.
    pub(super) fn verdict(self, rule: &Rule, error: &EvalError) -> Verdict {
        let rejects = match self {
            Self::Auto => rule.guards,
            Self::Deny => true,
            Self::Skip => false,
        };
        match undecidable(error) {
            Some(problem) => Verdict::Reject(problem),
            None if rejects || rule.terminates_tls => Verdict::Reject(Problem::Policy),
            None => Verdict::NoMatch,
        }
    }
}
