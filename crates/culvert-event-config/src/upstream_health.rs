//! The events of upstreams that became healthy or unhealthy.
//!
//! Each node judges by its own requests and checks, and reports what it sees. An upstream that changes often has one event a
//! minute, with its state then.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use culvert_base::sync::lock;
use culvert_base::{Event, Fault, Timestamp};
use culvert_edge_config::UpstreamChange;
use culvert_events::catalogue::AuditKind;
use culvert_events::{Audit, EventId};
use culvert_resources::audit;
use culvert_store::Changes;
use schemars::JsonSchema;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::EventConfig;
use crate::event_kinds::{UPSTREAM_HEALTHY, UPSTREAM_UNHEALTHY};
use crate::ports::EdgePort;

/// How often the changes are taken from the edge.
const TAKE_EVERY: Duration = Duration::from_secs(1);
/// Shortest time between two events of an upstream.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// Most events of an account in this time. Others wait.
const OF_ACCOUNT_MAX: usize = 100;
/// Most events in one commit.
const TOGETHER_MAX: usize = 100;

/// The object of the events.
#[derive(Debug, Serialize, JsonSchema)]
struct Object<'a> {
    /// ID of the endpoint.
    endpoint_id: &'a str,
    /// URL of the upstream.
    upstream: &'a str,
    /// The node that sees it so.
    node: &'a str,
    /// Why it is unhealthy: the last failure of requests or of a health check. Empty if it is healthy.
    reason: &'a str,
    /// When it changed.
    #[schemars(with = "String", extend("format" = "date-time"))]
    changed_at: Timestamp,
}

/// An endpoint and one of its upstreams.
type Key = (Arc<str>, String);

/// What was reported, and what waits.
#[derive(Debug, Default)]
pub(crate) struct UpstreamReports(Mutex<Reports>);

#[derive(Debug, Default)]
struct Reports {
    /// The last change of each.
    waiting: HashMap<Key, UpstreamChange>,
    reported: HashMap<Key, Reported>,
}

/// The last event of an upstream.
#[derive(Clone, Debug)]
struct Reported {
    account: Arc<str>,
    is_healthy: bool,
    at: Instant,
}

fn key(change: &UpstreamChange) -> Key {
    (Arc::clone(&change.endpoint), change.url.clone())
}

impl Reports {
    fn note(&mut self, changes: Vec<UpstreamChange>) {
        for change in changes {
            self.waiting.insert(key(&change), change);
        }
    }

    /// The changes to report now, the oldest first; with `all`, also those that are due later.
    fn due(&mut self, now: Instant, all: bool) -> Vec<UpstreamChange> {
        let reported = &self.reported;
        // One that changed back before it was due has nothing to say.
        self.waiting.retain(|key, change| {
            let before = reported.get(key).is_none_or(|before| before.is_healthy);
            before != change.is_healthy
        });
        let is_recent = |one: &Reported| now.saturating_duration_since(one.at) < REPORT_EVERY;
        let mut of_accounts: HashMap<Arc<str>, usize> = HashMap::new();
        for one in reported.values().filter(|one| is_recent(one)) {
            *of_accounts.entry(Arc::clone(&one.account)).or_default() += 1;
        }
        let is_due =
            |(key, _): &(&Key, &UpstreamChange)| all || !reported.get(*key).is_some_and(is_recent);
        let mut due: Vec<_> = self
            .waiting
            .iter()
            .filter(is_due)
            .map(|(_, one)| one)
            .collect();
        due.sort_by_key(|change| change.at);
        let has_room = |change: &&UpstreamChange| {
            let count = of_accounts.entry(Arc::clone(&change.account)).or_default();
            *count += 1;
            all || *count <= OF_ACCOUNT_MAX
        };
        let due = due.into_iter().filter(has_room);
        due.take(TOGETHER_MAX).cloned().collect()
    }

    fn reported(&mut self, changes: &[UpstreamChange], now: Instant) {
        for change in changes {
            // It may have changed again meanwhile.
            let key = key(change);
            if self.waiting.get(&key) == Some(change) {
                self.waiting.remove(&key);
            }
            let reported = Reported {
                account: Arc::clone(&change.account),
                is_healthy: change.is_healthy,
                at: now,
            };
            self.reported.insert(key, reported);
        }
    }

    /// Forgets upstreams that are healthy, or are not in a list any more.
    fn forget(&mut self, edge: &dyn EdgePort, now: Instant) {
        self.reported.retain(|(endpoint, url), one| {
            let is_recent = now.saturating_duration_since(one.at) < REPORT_EVERY;
            let is_listed = || {
                let statuses = edge.upstream_statuses(endpoint).unwrap_or_default();
                statuses.iter().any(|status| status.url == *url)
            };
            is_recent || (!one.is_healthy && is_listed())
        });
    }
}

/// The kinds of events.
pub fn kinds() -> [AuditKind; 2] {
    let schema = audit::schema_of::<Object<'static>>();
    let kind = |name: &str, doc: &str| AuditKind {
        name: name.to_owned(),
        doc: doc.to_owned(),
        schema: schema.clone(),
    };
    [
        kind(
            UPSTREAM_HEALTHY,
            "An upstream of an endpoint that was unhealthy responds again, or passes its health checks. From each node that \
             sees it.",
        ),
        kind(
            UPSTREAM_UNHEALTHY,
            "An upstream of an endpoint with several was ejected after failures in a row, or fails its health checks. From each \
             node that sees it. An upstream has one event a minute at most; an account has 100.",
        ),
    ]
}

impl EventConfig {
    fn upstream_reports(&self) -> MutexGuard<'_, Reports> {
        lock(&self.upstream_reports.0)
    }

    /// Reports the health of upstreams until cancelled, and then the rest.
    pub async fn report_upstream_health(&self, stop: CancellationToken) {
        loop {
            let is_over = tokio::select! {
                () = stop.cancelled() => true,
                () = tokio::time::sleep(TAKE_EVERY) => false,
            };
            if let Err(fault) = self.report_upstreams(is_over).await {
                tracing::warn!(cause = %fault.chain(), "reporting the health of upstreams failed; retrying");
            }
            if is_over {
                return;
            }
        }
    }

    /// Takes the changes of the edge of this process, and commits the events that are due; with `all`, also those that are
    /// due later.
    ///
    /// # Errors
    /// If the store fails. What was not written is tried again.
    pub async fn report_upstreams(&self, all: bool) -> Result<(), Fault> {
        let Some(edge) = &self.edge else {
            return Ok(());
        };
        let now = Instant::now();
        let due = {
            let mut reports = self.upstream_reports();
            reports.note(edge.take_upstream_changes());
            reports.forget(&**edge, now);
            reports.due(now, all)
        };
        if due.is_empty() {
            return Ok(());
        }
        let mut changes = Changes::default();
        for change in &due {
            changes = changes.and(Changes::event(self.event_of_upstream(change)?));
        }
        let written = self.kernel.store.commit(changes).await;
        written.map_err(|error| Fault::new("recording the health of upstreams", error))?;
        self.upstream_reports().reported(&due, now);
        Ok(())
    }

    fn event_of_upstream(&self, change: &UpstreamChange) -> Result<Event, Fault> {
        let kind = match change.is_healthy {
            true => UPSTREAM_HEALTHY,
            false => UPSTREAM_UNHEALTHY,
        };
        let object = Object {
            endpoint_id: &change.endpoint,
            upstream: &change.url,
            node: self.statistics.node(),
            reason: &change.reason,
            changed_at: change.at,
        };
        let at = self.kernel.clock.now();
        let id = EventId::new(at, self.kernel.entropy.bytes());
        Audit::by_server(kind, at, &id, &change.account).about(&object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(endpoint: &str, is_healthy: bool, seconds: i64) -> UpstreamChange {
        UpstreamChange {
            endpoint: endpoint.into(),
            account: "ac_1".into(),
            url: "http://10.0.0.1:80".to_owned(),
            is_healthy,
            reason: String::new(),
            at: Timestamp::from_unix_seconds(seconds),
        }
    }

    /// What is reported at a time, and counts as written.
    fn write(reports: &mut Reports, now: Instant) -> Vec<(String, bool)> {
        let due = reports.due(now, false);
        reports.reported(&due, now);
        let said = due
            .into_iter()
            .map(|one| (one.endpoint.to_string(), one.is_healthy));
        said.collect()
    }

    #[test]
    fn an_upstream_that_changes_often_has_one_event_a_minute() {
        let mut reports = Reports::default();
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let of = |is_healthy| vec![("ep_1".to_owned(), is_healthy)];
        // One that was never unhealthy has no event of its health.
        reports.note(vec![change("ep_1", true, 0)]);
        assert!(write(&mut reports, at(0)).is_empty());
        reports.note(vec![change("ep_1", false, 1)]);
        assert_eq!(write(&mut reports, at(1)), of(false));
        for second in 2..60_u32 {
            reports.note(vec![change("ep_1", second % 2 == 0, second.into())]);
            assert!(write(&mut reports, at(second.into())).is_empty());
        }
        reports.note(vec![change("ep_1", true, 60)]);
        assert!(write(&mut reports, at(60)).is_empty());
        assert_eq!(write(&mut reports, at(61)), of(true));
        assert!(write(&mut reports, at(200)).is_empty());
    }

    #[test]
    fn events_that_exceed_the_share_of_an_account_wait() {
        let mut reports = Reports::default();
        let began = Instant::now();
        let many = (0..150).map(|n| change(&format!("ep_{n}"), false, n));
        reports.note(many.collect());
        let mut other = change("ep_other", false, 500);
        other.account = "ac_2".into();
        reports.note(vec![other]);
        let mut said = write(&mut reports, began);
        said.extend(write(&mut reports, began));
        assert_eq!(said.len(), 101);
        assert!(said.iter().any(|(endpoint, _)| endpoint == "ep_other"));
        let minute = began + REPORT_EVERY;
        assert_eq!(write(&mut reports, minute).len(), 50);
        assert!(reports.waiting.is_empty());
    }
}
