//! Runs a phase of a policy: its rules, and the actions of those that match.

use std::fmt;

use bytes::Bytes;
use culvert_base::BoxFuture;
use culvert_cel::{EvalErrorKind, Slot};
use http::Response;

use crate::host::NextEndpoint;
use crate::policy::compiled::Rule;
use crate::policy::exchange::Exchange;
use crate::policy::handshake;
use crate::policy::phase::Phase;
use crate::problem::Problem;

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
        if let Some(secrets) = &policy.secrets
            && secrets.right.is_withdrawn()
        {
            return self.refuse(Problem::SecretsWithdrawn);
        }
        if !policy.ip_fields().is_empty() {
            let data = self.conn.services.ip_data.now();
            // The data existed when the policy was written. Without it, no rule can be evaluated.
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
