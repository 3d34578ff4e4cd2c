//! Certificates for managed domains, reserved ones and those of agent ingresses: got from an authority,
//! and got again at two thirds of their life.
//!
//! An order is a document of its own beside its domain, unique for it. It holds what the next step
//! needs (the authority's address of the order, the sealed key of the certificate, the answers to
//! challenges, which every node's edge shows) and the lease of the node that takes the steps. Every
//! step ends with a commit against the revision that was read, so of two nodes that take the same
//! order one is overtaken and stops; a node that dies leaves an order that is gone on with.
//!
//! ```text
//!            ┌─────────────── a wait, then again ◀──── failed ◀──────────┐
//!            ▼                                                           │
//! due ──▶ claimed ──▶ placed ──▶ answers stored and shown ──▶ seen ──▶ requested ──▶ issued
//! ```
//!
//! States are shown in the domain and told to nobody; a new certificate is told once, as its own
//! creation and an update of its domain (contract: events 5.4).

mod attempt;
mod holder;
mod order;

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Fault, Timestamp};
use culvert_store::Document;
use culvert_tls::acme::{self, Blame};
use tokio::sync::Notify;
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::control::Control;
use crate::ports::CertificateMeters;
use crate::reconcile::acme::holder::Holder;
use crate::resource::model::management::Management;
use crate::stored;

pub(crate) use crate::reconcile::acme::order::{KIND, Order};

/// Orders under way at once.
const AT_ONCE: usize = 4;
/// Orders are looked through at least this often, and so often while some wait for others.
const PASS_EVERY: Duration = Duration::from_secs(60);
const PASS_EVERY_WHILE_FULL: Duration = Duration::from_secs(1);
/// Two passes are at least this far apart, and ten times as far as a pass takes.
const PASS_APART: Duration = Duration::from_millis(50);
const PASS_APART_MAX: Duration = Duration::from_secs(5);

/// Longest wait between two attempts, for what passes by itself and for what an owner must mend.
const WAIT_MAX: Duration = Duration::from_secs(3600);
const WAIT_FOR_OWNER_MAX: Duration = Duration::from_secs(6 * 3600);
/// What an owner must mend is tried less often: authorities count failures of a name.
const WAIT_FOR_OWNER: u32 = 5;

/// A process without an authority has nothing to do but to say so: it gives others, that may have
/// one, this much time, and more where another has begun.
const GRACE: Duration = Duration::from_secs(5);
const GRACE_OF_ANOTHER: Duration = Duration::from_secs(600);

/// What is to be done about a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Now,
    At(Timestamp),
}

/// Who asks what is due.
#[derive(Clone, Copy, Debug)]
struct Asker<'a> {
    node: &'a str,
    /// Since when this process runs: older leases of its node are of nobody.
    since: Timestamp,
    /// The authority in use, empty for none.
    directory: &'a str,
}

impl Control {
    /// Gets and renews the certificates of managed domains until cancelled, if this process is to.
    pub async fn manage_certificates(self: Arc<Self>, cancel: CancellationToken) {
        let Some(certificates) = &self.certificates else {
            return cancel.cancelled().await;
        };
        let since = self.clock.now();
        let mut revision = self.store.watch();
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
            let mut skipped = Vec::new();
            let has_ended = Notify::new();
            match self.due_domains(asker).await {
                Ok((due, next)) => {
                    for domain_id in due {
                        if busy.len() >= AT_ONCE {
                            wake = wake.min(PASS_EVERY_WHILE_FULL);
                            break;
                        }
                        // It may be due again before the end of its attempt was noticed here.
                        if busy.values().any(|one| *one == domain_id) {
                            skipped.push(domain_id);
                            continue;
                        }
                        let control = Arc::clone(&self);
                        let id = domain_id.clone();
                        let task = attempts.spawn(async move {
                            control.attempt(&id, since).await;
                        });
                        busy.insert(task.id(), domain_id);
                    }
                    if let Some(next) = next {
                        wake = wake.min(next.since(self.clock.now()));
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
                        // The sender goes with the store, which goes after this task.
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
                    // An attempt is dropped between two steps and gone on with after the next start.
                    () = cancel.cancelled() => return,
                }
            }
        }
    }

    /// What is counted of managed certificates.
    pub fn certificate_meters(&self) -> &CertificateMeters {
        &self.certificate_meters
    }

    /// Domains with something to be done, and when the next thing is due. What is left of domains
    /// that are not managed any more is among them.
    async fn due_domains(
        &self,
        asker: Asker<'_>,
    ) -> Result<(Vec<String>, Option<Timestamp>), Fault> {
        let mut orders: HashMap<String, Order> = HashMap::new();
        for document in self.store.all(KIND).await? {
            match stored::read::<Order>(&document) {
                Ok(order) => drop(orders.insert(order.domain_id.clone(), order)),
                Err(fault) => error!(cause = %fault.chain(), "certificate order skipped"),
            }
        }
        let now = self.clock.now();
        let mut due = Vec::new();
        let mut next: Option<Timestamp> = None;
        let mut sort = |id: String, what: Due| match what {
            Due::Now => due.push(id),
            Due::At(at) => next = Some(next.map_or(at, |next| next.min(at))),
        };
        let mut documents = Vec::new();
        for ty in holder::TYPES {
            documents.extend(self.store.all(ty.kind).await?);
        }
        for document in documents {
            let domain = match Holder::read(&document) {
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

    /// Challenges that the edge is to answer, of the orders in `documents`.
    pub(crate) fn challenges<'a>(
        documents: impl Iterator<Item = &'a Document>,
    ) -> Vec<acme::Challenge> {
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

/// When something is to be done for a managed domain.
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
        // Another authority's wait is none of this one's.
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
    if at > now { Due::At(at) } else { Due::Now }
}

/// How long to wait after the last of `attempts` failures in a row; `spice` spreads nodes and
/// domains that failed together.
fn wait_after(
    blame: Blame,
    attempts: u32,
    first: Duration,
    asked: Option<Duration>,
    spice: u8,
) -> Duration {
    let (first, most) = match blame {
        Blame::Name => (WAIT_FOR_OWNER * first, WAIT_FOR_OWNER_MAX),
        Blame::Passing | Blame::Gone => (first, WAIT_MAX),
    };
    let doubled = first.saturating_mul(1 << attempts.saturating_sub(1).min(16));
    let wait = doubled.min(most);
    let spread = wait / 10 * u32::from(spice) / 255;
    (wait + spread).max(asked.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::model::management::{Job, JobError, KeyType};

    #[test]
    fn waits_double_to_a_limit() {
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
        let asked = wait_after(Blame::Passing, 1, minute, Some(9 * minute), 0);
        assert_eq!(asked, 9 * minute);
    }

    #[test]
    fn what_is_due_when() {
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
            // Another node is at it, or was.
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
            // This node was, before it started again.
            (
                managed(None, Some(None)),
                Some(order(ours, Some(("here", 40, 120)))),
                Due::Now,
            ),
            // Another authority was asked.
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
