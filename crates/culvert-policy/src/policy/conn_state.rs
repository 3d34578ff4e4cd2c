//! What policies made of a connection.

use std::sync::{Arc, Mutex};

use culvert_base::sync::lock;
use serde_json::{Map, Value};

use crate::event::push_log;
use crate::policy::compiled::Policy;

/// Policies whose connection phase is remembered: those of an endpoint and of the internal ones that
/// it forwards to.
const VISITS_MAX: usize = 4;

/// What the connection phases of policies made of a connection. Allocates nothing without one.
#[derive(Debug, Default)]
pub struct PolicyConnState(Mutex<Option<Box<PolicyResults>>>);

#[derive(Debug, Default)]
struct PolicyResults {
    /// Of HTTP endpoints, the last ones.
    visits: Vec<Visit>,
    is_http: bool,
    /// What IP policies decided.
    decision: Option<&'static str>,
    logs: Vec<Map<String, Value>>,
}

/// A policy whose connection phase ran.
#[derive(Debug)]
struct Visit {
    policy: Arc<Policy>,
    /// Whether it let the connection in.
    is_in: bool,
    decision: Option<&'static str>,
}

impl PolicyConnState {
    /// Whether a policy's connection phase let the connection in, if that is one of those that ran
    /// last: what IP policies decided then counts again. If not it is about to run, and what the one
    /// before decided is forgotten.
    pub fn entered(&self, policy: &Arc<Policy>) -> Option<bool> {
        let mut entry = lock(&self.0);
        let entry = entry.get_or_insert_default();
        let mut known = entry.visits.iter();
        let known = known.find(|visit| Arc::ptr_eq(&visit.policy, policy));
        entry.decision = known.and_then(|visit| visit.decision);
        known.map(|visit| visit.is_in)
    }

    /// Notes whether a policy's connection phase let the connection in.
    pub fn enter(&self, policy: &Arc<Policy>, is_in: bool) {
        let mut entry = lock(&self.0);
        let entry = entry.get_or_insert_default();
        if entry.visits.len() == VISITS_MAX {
            entry.visits.remove(0);
        }
        entry.visits.push(Visit {
            policy: Arc::clone(policy),
            is_in,
            decision: entry.decision,
        });
    }

    /// Notes whether requests tell what policies decide about the connection.
    pub fn speaks_http(&self, is_http: bool) {
        lock(&self.0).get_or_insert_default().is_http = is_http;
    }

    /// Notes what IP policies decided about the connection.
    pub fn decide(&self, decision: &'static str) {
        lock(&self.0).get_or_insert_default().decision = Some(decision);
    }

    /// Keeps an entry of the connection's log.
    pub fn log(&self, entry: Map<String, Value>) {
        push_log(&mut lock(&self.0).get_or_insert_default().logs, entry);
    }

    /// What IP policies decided, for each request on the connection.
    pub fn decision_for_requests(&self) -> Option<&'static str> {
        lock(&self.0).as_ref()?.decision
    }

    /// The same for the connection's own event, which leaves it to those of requests where there are
    /// some.
    pub fn decision_for_connection(&self) -> Option<&'static str> {
        let entry = lock(&self.0);
        let entry = entry.as_ref().filter(|entry| !entry.is_http);
        entry.and_then(|entry| entry.decision)
    }

    /// Shows the connection's log, if it has one.
    pub fn with_logs(&self, show: impl FnOnce(&[Map<String, Value>])) {
        if let Some(entry) = &*lock(&self.0)
            && !entry.logs.is_empty()
        {
            show(&entry.logs);
        }
    }
}
