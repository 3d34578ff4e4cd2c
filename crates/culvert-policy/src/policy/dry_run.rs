//! Which rules of a policy would match a past request.
//!
//! Only conditions are evaluated. No action runs, so nothing is sent or counted. If a condition reads a variable that
//! the record of the request lacks, its result is unknown.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use culvert_base::{BoxFuture, Clock, Entropy, FairPermits, Share, Timestamp};
use culvert_cel::{Resolver, Slot, ValueRef};
use culvert_http::fields::strip_named;
use http::{request, response};

use crate::conn::{ConnCounters, ConnInfo};
use crate::policy::compiled::{Policy, Rule};
use crate::policy::conn_state::PolicyConnState;
use crate::policy::exchange::{Exchange, Memory};
use crate::policy::phase::{Ends, Phase};
use crate::policy::run::{OnExpressionError, Verdict};
use crate::policy::variables;
use crate::ports::host::{
    Called, ConnContext, EndpointInfo, NextEndpoint, NotCalled, NotReached, PolicyHost,
};
use crate::ports::services::{Call, Cause, Fetch, FetchScope, PolicyServices, Spawn};
use crate::rate_limit::shared_counts::SharedCounts;
use crate::response::error_page::ErrorPages;
use crate::scheme::Scheme;
use crate::token::documents::Documents;
use culvert_ip_data::IpDatabases;

/// A past request, as far as it is recorded.
#[derive(Debug)]
pub struct PastRequest {
    /// When it ended.
    pub at: Timestamp,
    /// The client's address. Its port is not known.
    pub client: SocketAddr,
    /// The address that the client connected to.
    pub server: SocketAddr,
    /// Whether the client's connection was TLS.
    pub is_tls: bool,
    /// The SNI; empty without TLS.
    pub server_name: String,
    /// The request as received.
    pub request: request::Parts,
    /// The response as sent, if there was one.
    pub response: Option<response::Parts>,
}

/// Whether a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleResult {
    /// All conditions hold.
    Match,
    /// A condition does not hold.
    NoMatch,
    /// A condition reads a variable that is not known.
    Unknown,
    /// A condition fails, so the request is rejected.
    Reject,
    /// An earlier rule ends the phase.
    NotReached,
}

/// The result of a rule.
#[derive(Debug)]
pub struct DryRule<'p> {
    /// Its phase.
    pub phase: Phase,
    /// Its position in the phase, from 1.
    pub number: usize,
    /// The rule.
    pub rule: &'p Rule,
    /// Whether it matches.
    pub result: RuleResult,
    /// Names of the variables that are not known.
    pub unknown: Vec<&'static str>,
}

impl DryRule<'_> {
    /// Whether the rule ends its phase if it matches.
    pub fn ends(&self) -> Ends {
        self.rule.ends()
    }
}

/// Evaluates conditions without a connection.
#[derive(Debug)]
pub struct DryRun {
    services: Arc<PolicyServices>,
    on_expression_error: OnExpressionError,
}

impl DryRun {
    /// An evaluator with this IP data. Expressions that fail have the same consequences as for traffic.
    pub fn new(
        ip_data: IpDatabases,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        on_expression_error: OnExpressionError,
    ) -> Self {
        let services = PolicyServices {
            ip_data,
            counts: SharedCounts::new(Arc::clone(&clock), &*entropy),
            documents: Documents::new(),
            region: String::new(),
            calls: FairPermits::new(0),
            meters: Arc::default(),
            bodies: None,
            network: Arc::new(Nowhere),
            tasks: Box::new(Nowhere),
            is_from_copy: false,
            clock,
            entropy,
        };
        Self {
            services: Arc::new(services),
            on_expression_error,
        }
    }

    /// The result of each rule of a policy, in order.
    pub fn run<'p>(
        &self,
        policy: &'p Policy,
        endpoint: EndpointInfo<'_>,
        past: &PastRequest,
    ) -> Vec<DryRule<'p>> {
        let info = ConnInfo::new(past.client, past.server, false, past.at);
        if past.is_tls {
            info.set_sni(past.server_name.clone());
        }
        let (counters, state) = (ConnCounters::default(), PolicyConnState::default());
        let error_pages = ErrorPages::default();
        let conn = ConnContext {
            info: &info,
            counters: &counters,
            state: &state,
            services: &self.services,
            host: &Nowhere,
            on_expression_error: self.on_expression_error,
            allows_public_calls: false,
            error_pages: &error_pages,
        };
        // As the edge removes them before a phase begins.
        let mut request = past.request.clone();
        strip_named(&mut request.headers, policy.identity_fields().iter());
        let mut rules = Vec::new();
        for phase in Phase::ALL {
            let mut memory = Memory::new(past.at);
            let mut x = Exchange::new(phase, policy, endpoint, conn, &mut memory);
            x.is_tls_assumed = past.is_tls;
            if phase != Phase::Connect {
                x.request = Some(&request);
            }
            if phase == Phase::Response {
                x.response = past.response.as_ref();
            }
            let known = RecordedVariables {
                x: &x,
                is_tls: past.is_tls,
                missing: RefCell::default(),
            };
            let mut is_over = phase == Phase::Response && past.response.is_none();
            for (index, rule) in policy.rules(phase).iter().enumerate() {
                let (result, unknown) = match is_over {
                    true => (RuleResult::NotReached, Vec::new()),
                    false => known.judge(rule),
                };
                is_over |= result == RuleResult::Reject
                    || (result == RuleResult::Match && rule.ends() == Ends::Always);
                rules.push(DryRule {
                    phase,
                    number: index + 1,
                    rule,
                    result,
                    unknown,
                });
            }
        }
        rules
    }
}

/// Resolves the variables that are recorded.
struct RecordedVariables<'x, 'e> {
    x: &'x Exchange<'e>,
    is_tls: bool,
    /// Variables that were read but not recorded.
    missing: RefCell<Vec<&'static str>>,
}

impl RecordedVariables<'_, '_> {
    fn judge(&self, rule: &Rule) -> (RuleResult, Vec<&'static str>) {
        let mut all = Vec::new();
        let mut failed = None;
        for expression in &rule.expressions {
            self.missing.borrow_mut().clear();
            let result = expression.test(self);
            let missing = self.missing.take();
            match result {
                Ok(false) if missing.is_empty() => return (RuleResult::NoMatch, Vec::new()),
                Err(error) if missing.is_empty() => {
                    let verdict = self.x.conn.on_expression_error.verdict(rule, &error);
                    if error.is_limit() {
                        return (RuleResult::Reject, Vec::new());
                    }
                    if failed != Some(RuleResult::Reject) {
                        failed = Some(match verdict {
                            Verdict::Reject(_) => RuleResult::Reject,
                            Verdict::Match | Verdict::NoMatch => RuleResult::NoMatch,
                        });
                    }
                }
                _ => {}
            }
            for name in missing {
                if !all.contains(&name) {
                    all.push(name);
                }
            }
        }
        match (failed, all.is_empty()) {
            // The rule does not match, whatever is not known.
            (Some(RuleResult::NoMatch), _) => (RuleResult::NoMatch, Vec::new()),
            (Some(failed), true) => (failed, all),
            (None, true) => (RuleResult::Match, all),
            // An unknown condition may be false, and decides before the failure does.
            (_, false) => (RuleResult::Unknown, all),
        }
    }

    fn has(&self, path: &str) -> bool {
        let is_session = path.starts_with("conn.tls.") && path != "conn.tls.sni";
        let is_secret = path.starts_with('(');
        let of_connection = [
            "conn.client_port",
            "conn.server_region",
            "conn.bytes_in",
            "conn.bytes_out",
            "conn.ts.start",
            "req.version",
            variables::VARS,
            variables::ACTIONS,
        ];
        !(is_secret
            || (is_session && self.is_tls)
            || path.starts_with("req.ts.")
            || of_connection.contains(&path))
    }
}

impl Resolver for RecordedVariables<'_, '_> {
    fn value(&self, slot: Slot) -> Option<ValueRef<'_>> {
        let variable = variables::ALL.get(usize::from(slot))?;
        if self.has(&variable.path) {
            return self.x.value(slot);
        }
        let name = match &*variable.path {
            path if path.starts_with('(') => "secrets and random numbers",
            _ => &variable.path,
        };
        let mut missing = self.missing.borrow_mut();
        if !missing.contains(&name) {
            missing.push(name);
        }
        None
    }
}

/// Has no network. It is never called, because no action runs.
#[derive(Debug)]
struct Nowhere;

impl Fetch for Nowhere {
    fn fetch(
        &self,
        _: Share,
        _: FetchScope,
        _: Call,
        _: usize,
    ) -> BoxFuture<'_, Result<(response::Parts, Bytes), Cause>> {
        Box::pin(async { Err("a dry run sends no requests".into()) })
    }
}

impl Spawn for Nowhere {
    fn spawn(&self, _: BoxFuture<'static, ()>) {}
}

impl PolicyHost for Nowhere {
    fn internal(
        &self,
        _: EndpointInfo<'_>,
        _: Scheme,
        _: &str,
        _: u16,
    ) -> Result<NextEndpoint, NotReached> {
        Err(NotReached::Offline)
    }

    fn call(&self, _: Share, _: NextEndpoint, _: Call) -> BoxFuture<'_, Result<Called, NotCalled>> {
        Box::pin(async { Err(NotCalled::Closed) })
    }

    fn call_public(&self, _: Share, _: Call) -> BoxFuture<'_, Result<Called, NotCalled>> {
        Box::pin(async { Err(NotCalled::Closed) })
    }
}
