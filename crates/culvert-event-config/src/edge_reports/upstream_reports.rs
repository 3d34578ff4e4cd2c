//! Which upstreams were reported as healthy or unhealthy, and which changes have to be reported.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use culvert_edge_config::UnhealthyUpstream;

/// Shortest time between two events of an upstream.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// Most events of an account in this time. Others wait.
const OF_ACCOUNT_MAX: usize = 100;
/// Most events in one commit.
const TOGETHER_MAX: usize = 100;

/// An endpoint and one of its upstreams.
pub(super) type Key = (Arc<str>, String);

/// A change to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) key: Key,
    pub(super) account: Arc<str>,
    pub(super) is_healthy: bool,
    pub(super) reason: String,
    /// For how long it is so.
    pub(super) lasts: Duration,
}

/// What was reported.
#[derive(Debug, Default)]
pub(crate) struct UpstreamReports(pub(super) Mutex<Reports>);

#[derive(Clone, Debug, Default)]
pub(super) struct Reports {
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
    /// Since when it is healthy again, if it was unhealthy then.
    back_since: Option<Instant>,
}

impl Reports {
    /// The events that say what has changed since the last ones, those that last longest first. `is_listed` says whether an
    /// upstream is still in its list.
    pub(super) fn due(
        &mut self,
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
        for (key, one) in &mut self.reported {
            if one.is_healthy {
                continue;
            }
            if unhealthy.contains_key(key) {
                one.back_since = None;
                continue;
            }
            let since = *one.back_since.get_or_insert(now);
            if is_recent(one) {
                continue;
            }
            due.push(Change {
                key: key.clone(),
                account: Arc::clone(&one.account),
                is_healthy: true,
                reason: if is_listed(key) { "" } else { "removed" }.to_owned(),
                lasts: now.saturating_duration_since(since),
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
    pub(super) fn note(&mut self, changes: &[Change], now: Instant) {
        for change in changes {
            let reported = Reported {
                account: Arc::clone(&change.account),
                is_healthy: change.is_healthy,
                at: now,
                back_since: None,
            };
            self.reported.insert(change.key.clone(), reported);
        }
        self.reported.retain(|_, one| {
            !one.is_healthy || now.saturating_duration_since(one.at) < REPORT_EVERY
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unhealthy(account: &str, endpoint: &str) -> UnhealthyUpstream {
        UnhealthyUpstream {
            endpoint: endpoint.into(),
            account: account.into(),
            owner: "usr_1".into(),
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
        let back = reports.clone().due(vec![], |_| true, at(61));
        assert_eq!(
            back[0].lasts,
            Duration::from_secs(1),
            "since the look before"
        );
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
