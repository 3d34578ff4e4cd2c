//! Runs a phase of a policy: its rules, and the actions of those that match.

use std::any::Any;
use std::fmt;

use bytes::Bytes;
use culvert_base::BoxFuture;
use culvert_cel::{EvalErrorKind, Slot};
use http::header::HeaderName;
use http::{Response, request};

use crate::host::NextEndpoint;
use crate::identity::ForwardIdentity;
use crate::policy::compiled::Rule;
use crate::policy::exchange::Exchange;
use crate::policy::handshake;
use crate::policy::phase::Phase;
use crate::problem::Problem;

/// Paths below this one belong to the edge at an endpoint whose policy has an action with [`EdgePaths`].
pub const EDGE_PATHS: &str = "/culvert/";

/// The part of an action that answers requests to paths of the edge. It runs before all rules of its policy, whatever the
/// conditions of its own rule are. Such requests are never forwarded.
pub trait EdgePaths: Any + Send + Sync + fmt::Debug {
    /// Whether this action answers a request to a path below [`EDGE_PATHS`]. The first that does is the one.
    fn answers(&self, request: &request::Parts) -> bool;

    /// Answers the request. No rule has run, so expressions know no `vars` and no results of `actions`. A flow that
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

    /// The paths of the edge that it answers, if there are any.
    fn edge_paths(&self) -> Option<&dyn EdgePaths> {
        None
    }

    /// What is probably a mistake in its configuration, as a sentence without a full stop.
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

    /// How it forwards the identity of users, if it does.
    fn forwards(&self) -> Option<&ForwardIdentity> {
        None
    }

    /// The variables that its templates read.
    fn slots(&self) -> Vec<Slot> {
        Vec::new()
    }
}

/// The result of an action.
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

impl From<Flow> for ActionResult<'_> {
    fn from(flow: Flow) -> Self {
        Self::Done(flow)
    }
}

impl Exchange<'_> {
    /// Runs the rules of the phase.
    pub async fn run(&mut self) -> Flow {
        let policy = self.policy;
        if !self.loads_ip_data() {
            return self.fault();
        }
        if self.phase == Phase::Request
            && self.wants_results()
            && let Some(result) = handshake::result(self.conn.info, self.error())
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
                    ActionResult::Done(flow) => flow,
                    ActionResult::Later(flow) => flow.await,
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

    /// Answers a request to a path of the edge. `None` if the path is not the edge's.
    pub async fn answer_edge_path(&mut self) -> Option<Flow> {
        let (policy, request) = (self.policy, self.request?);
        if !policy.owns_path(request.uri.path()) {
            return None;
        }
        if !self.loads_ip_data() {
            return Some(self.fault());
        }
        let mut actions = policy.edge_paths();
        let Some(action) = actions.find(|action| action.answers(request)) else {
            return Some(self.refuse(Problem::EdgePath));
        };
        self.failure = None;
        let flow = match action.answer(self) {
            ActionResult::Done(flow) => flow,
            ActionResult::Later(flow) => flow.await,
        };
        Some(match flow {
            _ if self.is_missing => self.fault(),
            Flow::Continue | Flow::Forward(_) => self.refuse(Problem::EdgePath),
            flow => flow,
        })
    }

    /// Takes the IP data that the policy reads. False if some of it is not loaded.
    fn loads_ip_data(&mut self) -> bool {
        let policy = self.policy;
        if policy.ip_fields().is_empty() {
            return true;
        }
        let data = self.conn.services.ip_data.now();
        // The data existed when the policy was written. Without it, no rule can be evaluated.
        if !data.missing(policy.ip_fields()).is_empty() {
            self.conn.services.meters.failures.up();
            tracing::debug!(
                endpoint.id = %self.endpoint.id,
                "a traffic policy rejects traffic: data that it uses is not loaded"
            );
            return false;
        }
        self.ip_data = Some(data);
        true
    }

    /// Whether a rule applies. An expression that fails does not match. The result is `None`, which rejects the
    /// connection or request, in three cases: the edge is configured to reject what it cannot evaluate, the expression
    /// names an object that does not exist, or the rule has `terminate-tls`. A rule that requires client certificates
    /// must not be skipped because of an error.
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
}
