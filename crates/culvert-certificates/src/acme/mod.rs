//! Obtains and renews certificates for managed domains (reserved domains and those of agent ingresses) and for the
//! installation's own names. They are renewed at two thirds of their lifetime, or when the authority suggests it
//! (module `renewal`).
//!
//! Each domain has at most one order, stored as a separate document. The order holds the state that the
//! next step needs: the authority's URL of the order, the encrypted private key of the certificate, and the
//! responses to challenges, which the edge of every node serves. It also holds the lease of the node that
//! runs the steps. Every step ends with a commit against the revision that was read. If two nodes run the
//! same order, one commit fails and that node stops. If a node dies, another node resumes its order.
//!
//! ```text
//!            ┌─────────────── a wait, then again ◀──── failed ◀──────────┐
//!            ▼                                                           │
//! due ──▶ claimed ──▶ placed ──▶ challenges stored and served ──▶ seen ──▶ requested ──▶ issued
//! ```
//!
//! The domain shows these states. An order emits an event when it is placed, and one when it fails for the first time
//! (module `report`). A new certificate emits two: its own creation and an update of its domain (contract: events 5.4).

pub(crate) mod attempt;
pub(crate) mod halt;
pub mod holder;
pub mod order;
pub(crate) mod renewal;
pub mod report;

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Fault, RetryAfter, Timestamp};
use culvert_resources::stored;
use culvert_store::Document;
use culvert_tls::acme::{self, Blame};
use tokio::sync::Notify;
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::CertificateManager;
use crate::acme::holder::Holder;
use crate::acme::renewal::Renewals;
use crate::management::model::Management;
use crate::ports::CertificateMeters;

pub use crate::acme::order::{KIND, Order};

/// Limit of orders that run concurrently.
const AT_ONCE: usize = 4;
/// Longest time between two scans of the orders; the shorter one applies while orders wait for others.
const PASS_EVERY: Duration = Duration::from_secs(60);
const PASS_EVERY_WHILE_FULL: Duration = Duration::from_secs(1);
/// Minimum and maximum pause between two scans. The pause is ten times the duration of a scan within these
/// bounds.
const PASS_APART: Duration = Duration::from_millis(50);
const PASS_APART_MAX: Duration = Duration::from_secs(5);

/// Longest wait between two attempts, for temporary failures and for failures that the domain owner must fix.
const WAIT_MAX: Duration = Duration::from_secs(3600);
/// Longest wait that the authority or a DNS provider may request.
const ASKED_MAX: Duration = Duration::from_secs(24 * 3600);
const WAIT_FOR_OWNER_MAX: Duration = Duration::from_secs(6 * 3600);
/// Factor for failures that the domain owner must fix: authorities count the failures of a name.
const WAIT_FOR_OWNER: u32 = 5;

/// A process without a certificate authority can only report that. It waits this long for a process that has
/// one, and longer if another process has started the order.
const GRACE: Duration = Duration::from_secs(5);
const GRACE_OF_ANOTHER: Duration = Duration::from_secs(600);

/// When a domain needs work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Now,
    At(Timestamp),
}

/// The process that checks for due work.
#[derive(Clone, Copy, Debug)]
struct Asker<'a> {
    node: &'a str,
    /// Start of this process. Older leases of its node are void.
    since: Timestamp,
    /// The directory of the authority in use; empty for none.
    directory: &'a str,
}

impl CertificateManager {
    /// Obtains and renews the certificates of managed domains until cancelled, if this process is configured
    /// to.
    pub async fn manage_certificates(self: Arc<Self>, cancel: CancellationToken) {
        let Some(certificates) = &self.certificates else {
            return cancel.cancelled().await;
        };
        let since = self.kernel.clock.now();
        let mut are_names_kept = false;
        let mut renewals = Renewals::default();
        let mut revision = self.kernel.store.watch();
        let mut attempts: JoinSet<()> = JoinSet::new();
        let mut busy: HashMap<Id, String> = HashMap::new();
        loop {
            revision.mark_unchanged();
            let began = Instant::now();
            let asker = Asker {
                node: &certificates.node,
                since,
                directory: certificates.directory(),
            };
            let mut wake = PASS_EVERY;
            if !are_names_kept && !self.kernel.store.is_read_only() {
                match self.keep_own_names(&certificates.own_names).await {
                    Ok(()) => are_names_kept = true,
                    Err(fault) => {
                        error!(cause = %fault.chain(), "the names of public certificates were not stored; retrying later");
                    }
                }
            }
            self.ask_about_renewals(certificates, &mut renewals).await;
            let mut skipped = Vec::new();
            let has_ended = Notify::new();
            match self.due_domains(asker).await {
                Ok((due, next)) => {
                    for domain_id in due {
                        if busy.len() >= AT_ONCE {
                            wake = wake.min(PASS_EVERY_WHILE_FULL);
                            break;
                        }
                        // The domain can be due again before this loop sees the end of its attempt.
                        if busy.values().any(|one| *one == domain_id) {
                            skipped.push(domain_id);
                            continue;
                        }
                        let manager = Arc::clone(&self);
                        let id = domain_id.clone();
                        let task = attempts.spawn(async move {
                            manager.attempt(&id, since).await;
                        });
                        busy.insert(task.id(), domain_id);
                    }
                    if let Some(next) = next {
                        wake = wake.min(next.since(self.kernel.clock.now()));
                    }
                }
                Err(fault) => {
                    error!(cause = %fault.chain(), "checking managed certificates failed; retrying later");
                }
            }
            let apart = (10 * began.elapsed()).clamp(PASS_APART, PASS_APART_MAX);
            let woken = async {
                tokio::time::sleep(apart).await;
                let notified = async {
                    tokio::select! {
                        // The sender lives in the store, which outlives this task.
                        _ = revision.changed() => {}
                        () = has_ended.notified() => {}
                    }
                };
                drop(tokio::time::timeout(wake, notified).await);
            };
            tokio::pin!(woken);
            loop {
                tokio::select! {
                    () = &mut woken => break,
                    ended = attempts.join_next_with_id(), if !attempts.is_empty() => {
                        let id = match ended {
                            Some(Ok((id, ()))) => id,
                            Some(Err(error)) => {
                                error!(%error, "certificate task failed");
                                error.id()
                            }
                            None => continue,
                        };
                        if busy.remove(&id).is_some_and(|domain| skipped.contains(&domain)) {
                            has_ended.notify_one();
                        }
                    }
                    // An attempt that stops between two steps resumes after the next start.
                    () = cancel.cancelled() => return,
                }
            }
        }
    }

    /// Metrics of managed certificates.
    pub fn certificate_meters(&self) -> &CertificateMeters {
        &self.meters
    }

    /// Lists the domains that need work now, and the time of the next work. Includes leftovers of domains
    /// that are no longer managed.
    async fn due_domains(
        &self,
        asker: Asker<'_>,
    ) -> Result<(Vec<String>, Option<Timestamp>), Fault> {
        let mut orders: HashMap<String, Order> = HashMap::new();
        for document in self.kernel.store.all(KIND).await? {
            match stored::read::<Order>(&document) {
                Ok(order) => drop(orders.insert(order.domain_id.clone(), order)),
                Err(fault) => error!(cause = %fault.chain(), "certificate order skipped"),
            }
        }
        let now = self.kernel.clock.now();
        let mut due = Vec::new();
        let mut next: Option<Timestamp> = None;
        let mut sort = |id: String, what: Due| match what {
            Due::Now => due.push(id),
            Due::At(at) => next = Some(next.map_or(at, |next| next.min(at))),
        };
        let mut documents = Vec::new();
        for kind in holder::kinds(self) {
            documents.extend(self.kernel.store.all(kind).await?);
        }
        for document in documents {
            let domain = match Holder::read(self, &document) {
                Ok(domain) => domain,
                Err(fault) => {
                    error!(cause = %fault.chain(), "domain skipped");
                    continue;
                }
            };
            let Some(management) = domain.management() else {
                continue;
            };
            let order = orders.remove(&document.head.id);
            let what = due_for(management, order.as_ref(), asker, now);
            sort(document.head.id, what);
        }
        for (domain_id, order) in orders {
            let what = order.lease_end(asker, now).map_or(Due::Now, Due::At);
            sort(domain_id, what);
        }
        Ok((due, next))
    }

    /// The challenges of the orders in `documents`, for the edge to respond to.
    pub fn challenges<'a>(documents: impl Iterator<Item = &'a Document>) -> Vec<acme::Challenge> {
        let mut challenges = Vec::new();
        for document in documents {
            match stored::read::<Order>(document) {
                Ok(order) => challenges.extend(order.challenges()),
                Err(fault) => error!(cause = %fault.chain(), "certificate order skipped"),
            }
        }
        challenges
    }
}

/// When a managed domain needs work.
fn due_for(
    management: &Management,
    order: Option<&Order>,
    asker: Asker<'_>,
    now: Timestamp,
) -> Due {
    if let Some(order) = order {
        if let Some(until) = order.lease_end(asker, now) {
            return Due::At(until);
        }
        // A wait for another authority does not apply to this one.
        if !asker.directory.is_empty() && order.directory != asker.directory {
            return Due::Now;
        }
    }
    let at = match &management.job {
        Some(job) => job.retries_at.unwrap_or(job.started_at),
        None => management.renews_at.unwrap_or(now),
    };
    let grace = match order {
        _ if !asker.directory.is_empty() => Duration::ZERO,
        Some(order) if !order.directory.is_empty() => GRACE_OF_ANOTHER,
        _ => GRACE,
    };
    let at = at.plus(grace);
    // A retry that is later than any wait was put off by a clock that was ahead.
    let is_real = management.job.is_none() || at <= now.plus(ASKED_MAX + GRACE_OF_ANOTHER);
    if at > now && is_real {
        Due::At(at)
    } else {
        Due::Now
    }
}

/// How long to wait after `attempts` consecutive failures; `spice` spreads nodes and domains that failed
/// together.
fn wait_after(
    blame: Blame,
    attempts: u32,
    first: Duration,
    asked: Option<RetryAfter>,
    spice: u8,
) -> Duration {
    let (first, most) = match blame {
        Blame::Name => (WAIT_FOR_OWNER * first, WAIT_FOR_OWNER_MAX),
        Blame::Passing | Blame::Gone => (first, WAIT_MAX),
    };
    let doubled = first.saturating_mul(1 << attempts.saturating_sub(1).min(16));
    let wait = doubled.min(most);
    let spread = wait / 10 * u32::from(spice) / 255;
    RetryAfter::wait(asked, wait + spread, ASKED_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::management::model::{Job, JobError, KeyType};

    #[test]
    fn retry_delays_double_up_to_a_limit() {
        let minute = Duration::from_secs(60);
        for (blame, attempts, minutes) in [
            (Blame::Passing, 1, 1),
            (Blame::Gone, 2, 2),
            (Blame::Passing, 5, 16),
            (Blame::Passing, 7, 60),
            (Blame::Passing, u32::MAX, 60),
            (Blame::Name, 1, 5),
            (Blame::Name, 4, 40),
            (Blame::Name, 8, 360),
        ] {
            let wait = wait_after(blame, attempts, minute, None, 0);
            assert_eq!(wait, minutes * minute, "{blame:?} {attempts}");
            let spiced = wait_after(blame, attempts, minute, None, 255);
            assert_eq!(spiced, wait + wait / 10);
        }
        for (asked, expected) in [(0, 1), (9, 9), (u32::MAX, 24 * 60)] {
            let asked = Some(RetryAfter::new(asked * minute));
            let wait = wait_after(Blame::Passing, 1, minute, asked, 0);
            assert_eq!(wait, expected * minute);
        }
    }

    #[test]
    fn orders_and_retries_are_due_at_their_times() {
        let at = Timestamp::from_unix_seconds;
        let asker = Asker {
            node: "here",
            since: at(50),
            directory: "https://ca.example/dir",
        };
        let managed = |renews_at: Option<i64>, retries_at: Option<Option<i64>>| Management {
            private_key_type: KeyType::Rsa,
            renews_at: renews_at.map(at),
            job: retries_at.map(|retries_at| Job {
                error: retries_at.map(|_| JobError::Internal),
                msg: String::new(),
                started_at: at(0),
                retries_at: retries_at.map(at),
                failed_at: None,
            }),
        };
        let order = |directory: &str, lease: Option<(&str, i64, i64)>| {
            let mut order = Order::new("rd_1".into(), directory.to_owned());
            order.lease = lease.map(|(node, since, until)| order::Lease {
                node: node.to_owned(),
                since: at(since),
                until: at(until),
            });
            order
        };
        let ours = asker.directory;
        let without = Asker {
            directory: "",
            ..asker
        };
        let begun = managed(None, Some(None));
        for (order, seconds) in [
            (None, 5),
            (Some(order("", None)), 5),
            (Some(order(ours, None)), 600),
        ] {
            let due = due_for(&begun, order.as_ref(), without, at(1));
            assert_eq!(due, Due::At(at(seconds)));
            assert_eq!(due_for(&begun, order.as_ref(), without, at(600)), Due::Now);
        }
        for (n, (management, order, due)) in [
            (managed(None, None), None, Due::Now),
            (managed(Some(200), None), None, Due::At(at(200))),
            (managed(Some(100), None), None, Due::Now),
            (managed(None, Some(None)), None, Due::Now),
            (managed(None, Some(Some(130))), None, Due::At(at(130))),
            (managed(Some(20), Some(Some(130))), None, Due::At(at(130))),
            (managed(Some(200), Some(Some(90))), None, Due::Now),
            // Another node holds the lease, or held it.
            (
                managed(None, Some(None)),
                Some(order(ours, Some(("there", 60, 120)))),
                Due::At(at(120)),
            ),
            (
                managed(None, Some(None)),
                Some(order(ours, Some(("there", 10, 90)))),
                Due::Now,
            ),
            // This node held it before its restart.
            (
                managed(None, Some(None)),
                Some(order(ours, Some(("here", 40, 120)))),
                Due::Now,
            ),
            // A clock that was ahead took the lease, or put off the retry.
            (
                managed(None, Some(None)),
                Some(order(ours, Some(("there", 60, 4000)))),
                Due::Now,
            ),
            (managed(None, Some(Some(100_000))), None, Due::Now),
            (managed(Some(100_000), None), None, Due::At(at(100_000))),
            // The wait is for another authority.
            (
                managed(None, Some(Some(130))),
                Some(order("", None)),
                Due::Now,
            ),
            (
                managed(None, Some(Some(130))),
                Some(order(ours, None)),
                Due::At(at(130)),
            ),
        ]
        .into_iter()
        .enumerate()
        {
            let found = due_for(&management, order.as_ref(), asker, at(100));
            assert_eq!(found, due, "case {n}");
        }
    }
}
