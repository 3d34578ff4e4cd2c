//! Runs the workers, and reads the backlog at intervals.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Worker;
use crate::plane::Plane;
use crate::settings::PUT_DEADLINE;

/// Interval of reading the backlog, for missed wake-ups and appends of other nodes.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The interval on a node that does not send: only the backlog shows what other nodes have sent.
const LOOK_EVERY_WITHOUT_SENDING: Duration = Duration::from_millis(500);
/// Interval of pruning dead letters.
const PRUNE_EVERY: Duration = Duration::from_secs(600);

/// Runs one worker for each destination with waiting events, if this node sends, and reads the backlog at
/// intervals. Ends when cancelled, after every worker has settled its leases.
pub(crate) async fn supervise(plane: Arc<Plane>, cancel: CancellationToken) {
    let look_every = if plane.settings.sends {
        LOOK_EVERY
    } else {
        LOOK_EVERY_WITHOUT_SENDING
    };
    let mut workers: JoinSet<Arc<str>> = JoinSet::new();
    let mut running: HashMap<Arc<str>, tokio::task::AbortHandle> = HashMap::new();
    // The backlog was read before anything was appended. Reading it beside the first append could miss that append.
    let mut looked_at = tokio::time::Instant::now();
    let mut times_set = plane.clock.times_set();
    let mut pruned_at: Option<tokio::time::Instant> = None;
    while !cancel.is_cancelled() {
        if looked_at.elapsed() >= look_every {
            looked_at = tokio::time::Instant::now();
            let look = plane.all_counters.look();
            match plane.log.backlog().await {
                Ok(backlog) => {
                    plane.all_counters.refresh(look, &backlog);
                    plane.forget_deleted();
                    plane.check_disk();
                    for waiting in backlog.iter().filter(|waiting| waiting.batches > 0) {
                        plane.notifier.wake(&waiting.destination);
                    }
                }
                Err(fault) => {
                    tracing::error!(cause = %fault.chain(), "cannot read the queue backlog");
                }
            }
        }
        let was_set = std::mem::replace(&mut times_set, plane.clock.times_set()) != times_set;
        if was_set {
            // They wait for times of the clock before.
            for (destination, _) in plane.notifier.each() {
                plane.notifier.wake(&destination);
            }
        }
        if was_set || pruned_at.is_none_or(|at| at.elapsed() >= PRUNE_EVERY) {
            bound_leases(&plane).await;
        }
        if pruned_at.is_none_or(|at| at.elapsed() >= PRUNE_EVERY) {
            pruned_at = Some(tokio::time::Instant::now());
            if let Err(fault) = plane.queue.prune(plane.cutoff(Duration::ZERO)).await {
                tracing::error!(cause = %fault.chain(), "cannot prune dead letters");
            }
        }
        running.retain(|_, worker| !worker.is_finished());
        let wanted = if plane.settings.sends {
            plane.notifier.each()
        } else {
            Vec::new()
        };
        for (destination, notify) in wanted {
            running
                .entry(destination)
                .or_insert_with_key(|destination| {
                    let worker = Worker::new(plane.clone(), destination.clone());
                    workers.spawn(worker.run(notify, cancel.clone()))
                });
        }
        tokio::select! {
            () = plane.notifier.wanted.notified() => {}
            () = tokio::time::sleep(look_every) => {}
            () = cancel.cancelled() => {}
            Some(ended) = workers.join_next() => match ended {
                // The destination is deleted.
                Ok(destination) => {
                    running.remove(&destination);
                    plane.notifier.forget(&destination);
                    plane.all_counters.forget(&destination);
                }
                Err(error) => tracing::error!(cause = %error, "a delivery worker stopped; restarting it"),
            },
        }
    }
    while workers.join_next().await.is_some() {}
}

/// Ends leases that are longer than leases can be, as of a node whose clock was wrong, at their longest time.
async fn bound_leases(plane: &Plane) {
    let longest = plane.settings.lease.max(2 * PUT_DEADLINE);
    let bounded = plane.queue.bound_leases(plane.clock.now().plus(longest));
    if let Err(fault) = bounded.await {
        tracing::error!(cause = %fault.chain(), "cannot bound the leases of batches");
    }
}
