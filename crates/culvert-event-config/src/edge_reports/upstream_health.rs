//! The events of upstreams that became healthy or unhealthy.
//!
//! Each node judges by its own requests and checks, and reports what it sees. An upstream that changes often has one event a
//! minute, with its state then.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use culvert_base::sync::lock;
use culvert_base::{Event, Fault, Timestamp};
use culvert_edge_config::UnhealthyUpstream;
use culvert_events::catalogue::AuditKind;
use culvert_events::{Audit, EventId};
use culvert_resources::audit;
use culvert_store::Changes;
use schemars::JsonSchema;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::EventConfig;
use crate::event_kinds::{UPSTREAM_HEALTHY, UPSTREAM_UNHEALTHY};

/// How often it compares the upstreams with what it reported.
const LOOK_EVERY: Duration = Duration::from_secs(2);
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
    /// Why it is unhealthy: the last failure of requests or of a health check. Empty if it is healthy; `removed` if it is not
    /// in the list any more.
    reason: &'a str,
    /// When it became so.
    #[schemars(with = "String", extend("format" = "date-time"))]
    changed_at: Timestamp,
}

/// An endpoint and one of its upstreams.
type Key = (Arc<str>, String);

/// A change to report.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    key: Key,
    account: Arc<str>,
    is_healthy: bool,
    reason: String,
    /// For how long it is so.
    lasts: Duration,
}

/// What was reported.
#[derive(Debug, Default)]
pub(crate) struct UpstreamReports(Mutex<Reports>);

#[derive(Debug, Default)]
struct Reports {
    /// The last event of each upstream that was unhealthy then, or in the last minute. No more than lists
    /// have: those that are removed are reported and forgotten.
    reported: HashMap<Key, Reported>,
}

/// The last event of an upstream.
#[derive(Clone, Debug)]
struct Reported {
    account: Arc<str>,
    is_healthy: bool,
    at: Instant,
}

impl Reports {
    /// The events that say what has changed since the last ones, those that last longest first. `is_listed` says whether an
    /// upstream is still in its list.
    fn due(
        &self,
        unhealthy: Vec<UnhealthyUpstream>,
        is_listed: impl Fn(&Key) -> bool,
        now: Instant,
    ) -> Vec<Change> {
        let unhealthy = unhealthy.into_iter();
        let unhealthy: HashMap<Key, UnhealthyUpstream> = unhealthy
            .map(|one| ((Arc::clone(&one.endpoint), one.url.clone()), one))
            .collect();
        let is_recent = |one: &Reported| now.saturating_duration_since(one.at) < REPORT_EVERY;
        let recent = self.reported.values().filter(|one| is_recent(one));
        let mut of_accounts: HashMap<Arc<str>, usize> = HashMap::new();
        for one in recent {
            *of_accounts.entry(Arc::clone(&one.account)).or_default() += 1;
        }
        let mut due: Vec<Change> = Vec::new();
        for (key, one) in &self.reported {
            if one.is_healthy || unhealthy.contains_key(key) || is_recent(one) {
                continue;
            }
            due.push(Change {
                key: key.clone(),
                account: Arc::clone(&one.account),
                is_healthy: true,
                reason: if is_listed(key) { "" } else { "removed" }.to_owned(),
                lasts: Duration::ZERO,
            });
        }
        for (key, one) in unhealthy {
            let before = self.reported.get(&key);
            if before.is_none_or(|before| before.is_healthy && !is_recent(before)) {
                due.push(Change {
                    key,
                    account: one.account,
                    is_healthy: false,
                    reason: one.reason,
                    lasts: one.lasts,
                });
            }
        }
        due.sort_by_key(|change| std::cmp::Reverse(change.lasts));
        let mut has_room = |change: &Change| {
            let count = of_accounts.entry(Arc::clone(&change.account)).or_default();
            *count += 1;
            *count <= OF_ACCOUNT_MAX
        };
        due.retain(|change| has_room(change));
        due.truncate(TOGETHER_MAX);
        due
    }

    /// Notes that these have events, and forgets those that have nothing more to say.
    fn note(&mut self, changes: &[Change], now: Instant) {
        for change in changes {
            let reported = Reported {
                account: Arc::clone(&change.account),
                is_healthy: change.is_healthy,
                at: now,
            };
            self.reported.insert(change.key.clone(), reported);
        }
        self.reported.retain(|_, one| {
            !one.is_healthy || now.saturating_duration_since(one.at) < REPORT_EVERY
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
            "An upstream of an endpoint that was unhealthy responds again, passes its health checks, or is not in the list \
             any more. From each node that sees it.",
        ),
        kind(
            UPSTREAM_UNHEALTHY,
            "An upstream of an endpoint with several was ejected after failures in a row, or fails its health checks. From each \
             node that sees it. An upstream has one event a minute at most; an account has 100. A node that starts does not know the last state.",
        ),
    ]
}

impl EventConfig {
    fn upstream_reports(&self) -> MutexGuard<'_, Reports> {
        lock(&self.upstream_reports.0)
    }

    /// Reports the health of upstreams until cancelled.
    pub async fn report_upstream_health(&self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            if let Err(fault) = self.report_upstreams().await {
                tracing::warn!(cause = %fault.chain(), "reporting the health of upstreams failed; retrying");
            }
        }
    }

    /// Commits the events that are due.
    ///
    /// # Errors
    /// If the store fails. What was not written is tried again.
    pub async fn report_upstreams(&self) -> Result<(), Fault> {
        let Some(edge) = &self.edge else {
            return Ok(());
        };
        // An edge that stops has no lists any more.
        let Some(unhealthy) = edge.unhealthy_upstreams() else {
            return Ok(());
        };
        let now = Instant::now();
        let is_listed = |(endpoint, url): &Key| {
            let statuses = edge.upstream_statuses(endpoint).unwrap_or_default();
            statuses.iter().any(|status| status.url == *url)
        };
        let due = {
            let mut reports = self.upstream_reports();
            reports.note(&[], now);
            reports.due(unhealthy, is_listed, now)
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
        self.upstream_reports().note(&due, now);
        Ok(())
    }

    fn event_of_upstream(&self, change: &Change) -> Result<Event, Fault> {
        let kind = match change.is_healthy {
            true => UPSTREAM_HEALTHY,
            false => UPSTREAM_UNHEALTHY,
        };
        let at = self.kernel.clock.now();
        let object = Object {
            endpoint_id: &change.key.0,
            upstream: &change.key.1,
            node: self.statistics.node(),
            reason: &change.reason,
            changed_at: at.minus(change.lasts),
        };
        let id = EventId::new(at, self.kernel.entropy.bytes());
        Audit::by_server(kind, at, &id, &change.account).about(&object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unhealthy(account: &str, endpoint: &str) -> UnhealthyUpstream {
        UnhealthyUpstream {
            endpoint: endpoint.into(),
            account: account.into(),
            url: "http://10.0.0.1:80".to_owned(),
            reason: "refused".to_owned(),
            lasts: Duration::ZERO,
        }
    }

    /// What is reported at a time, and counts as written.
    fn write(
        reports: &mut Reports,
        unhealthy: Vec<UnhealthyUpstream>,
        is_listed: bool,
        now: Instant,
    ) -> Vec<(String, bool, String)> {
        reports.note(&[], now);
        let due = reports.due(unhealthy, |_| is_listed, now);
        reports.note(&due, now);
        let said = due.into_iter();
        said.map(|one| (one.key.0.to_string(), one.is_healthy, one.reason))
            .collect()
    }

    #[test]
    fn an_upstream_that_changes_often_has_one_event_a_minute() {
        let mut reports = Reports::default();
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let bad = || vec![unhealthy("ac_1", "ep_1")];
        let said =
            |is_healthy, reason: &str| vec![("ep_1".to_owned(), is_healthy, reason.to_owned())];
        assert!(write(&mut reports, vec![], true, at(0)).is_empty());
        assert_eq!(
            write(&mut reports, bad(), true, at(1)),
            said(false, "refused")
        );
        for second in 2..61 {
            let now = if second % 2 == 0 { vec![] } else { bad() };
            assert!(write(&mut reports, now, true, at(second)).is_empty());
        }
        assert_eq!(write(&mut reports, vec![], true, at(61)), said(true, ""));
        assert!(write(&mut reports, bad(), true, at(62)).is_empty());
        assert_eq!(
            write(&mut reports, bad(), true, at(121)),
            said(false, "refused")
        );
        assert!(write(&mut reports, bad(), true, at(300)).is_empty());
    }

    /// Also one that is removed has an end, and begins again as a new one.
    #[test]
    fn an_upstream_that_is_removed_has_an_event_and_is_forgotten() {
        let mut reports = Reports::default();
        let began = Instant::now();
        let minute = |n: u32| began + n * REPORT_EVERY;
        let bad = || vec![unhealthy("ac_1", "ep_1")];
        assert_eq!(write(&mut reports, bad(), true, minute(0)).len(), 1);
        let said = write(&mut reports, vec![], false, minute(1));
        assert_eq!(said, [("ep_1".to_owned(), true, "removed".to_owned())]);
        assert!(write(&mut reports, vec![], false, minute(2)).is_empty());
        assert!(reports.reported.is_empty());
        assert_eq!(write(&mut reports, bad(), true, minute(3)).len(), 1);
    }

    #[test]
    fn events_that_exceed_the_share_of_an_account_wait() {
        let mut reports = Reports::default();
        let began = Instant::now();
        let all = || {
            let many = (0..150).map(|n| unhealthy("ac_1", &format!("ep_{n}")));
            many.chain([unhealthy("ac_2", "ep_other")]).collect()
        };
        let mut said = write(&mut reports, all(), true, began);
        said.extend(write(&mut reports, all(), true, began));
        assert_eq!(said.len(), 101);
        assert!(said.iter().any(|(endpoint, ..)| endpoint == "ep_other"));
        assert_eq!(
            write(&mut reports, all(), true, began + REPORT_EVERY).len(),
            50
        );
        assert_eq!(
            write(&mut reports, all(), true, began + 2 * REPORT_EVERY).len(),
            0
        );
    }
}
