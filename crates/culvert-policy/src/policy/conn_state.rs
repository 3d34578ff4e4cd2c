//! The results of a connection's policies.

use std::sync::{Arc, Mutex};

use culvert_base::sync::lock;
use serde_json::{Map, Value};

use crate::event::push_log;
use crate::policy::compiled::Policy;

/// Maximum number of policies whose connection phase is remembered: those of an endpoint and of the internal endpoints
/// that it forwards to.
const POLICIES_MAX: usize = 4;

/// The results of the connection phases of a connection's policies. Allocates nothing without one.
#[derive(Debug, Default)]
pub struct PolicyConnState(Mutex<Option<Box<PolicyResults>>>);

#[derive(Debug, Default)]
struct PolicyResults {
    /// The last policies of HTTP endpoints.
    policies: Vec<ConnectedPolicy>,
    is_http: bool,
    /// The decision of IP policies.
    decision: Option<&'static str>,
    logs: Vec<Map<String, Value>>,
}

/// A policy whose connection phase ran.
#[derive(Debug)]
struct ConnectedPolicy {
    policy: Arc<Policy>,
    /// Whether it accepted the connection.
    is_in: bool,
    decision: Option<&'static str>,
}

impl PolicyConnState {
    /// Whether a policy's connection phase accepted the connection, if it is one of the last that ran; the decision of IP
    /// policies then applies again. Otherwise the phase is about to run, and the previous decision is reset.
    pub fn entered(&self, policy: &Arc<Policy>) -> Option<bool> {
        let mut entry = lock(&self.0);
        let entry = entry.get_or_insert_default();
        let mut known = entry.policies.iter();
        let known = known.find(|seen| Arc::ptr_eq(&seen.policy, policy));
        entry.decision = known.and_then(|seen| seen.decision);
        known.map(|seen| seen.is_in)
    }

    /// Records whether a policy's connection phase accepted the connection.
    pub fn enter(&self, policy: &Arc<Policy>, is_in: bool) {
        let mut entry = lock(&self.0);
        let entry = entry.get_or_insert_default();
        if entry.policies.len() == POLICIES_MAX {
            entry.policies.remove(0);
        }
        entry.policies.push(ConnectedPolicy {
            policy: Arc::clone(policy),
            is_in,
            decision: entry.decision,
        });
    }

    /// Sets whether the events of requests have the decision.
    pub fn speaks_http(&self, is_http: bool) {
        lock(&self.0).get_or_insert_default().is_http = is_http;
    }

    /// Records the decision of IP policies about the connection.
    pub fn decide(&self, decision: &'static str) {
        lock(&self.0).get_or_insert_default().decision = Some(decision);
    }

    /// Adds an entry to the connection's log.
    pub fn log(&self, entry: Map<String, Value>) {
        push_log(&mut lock(&self.0).get_or_insert_default().logs, entry);
    }

    /// The decision of IP policies, for each request on the connection.
    pub fn decision_for_requests(&self) -> Option<&'static str> {
        lock(&self.0).as_ref()?.decision
    }

    /// The decision of IP policies, for the connection's event; `None` on HTTP connections, where the events of
    /// requests have it.
    pub fn decision_for_connection(&self) -> Option<&'static str> {
        let entry = lock(&self.0);
        let entry = entry.as_ref().filter(|entry| !entry.is_http);
        entry.and_then(|entry| entry.decision)
    }

    /// Passes the connection's log to `show`, if there is one.
    pub fn with_logs(&self, show: impl FnOnce(&[Map<String, Value>])) {
        if let Some(entry) = &*lock(&self.0)
            && !entry.logs.is_empty()
        {
            show(&entry.logs);
        }
    }
}
