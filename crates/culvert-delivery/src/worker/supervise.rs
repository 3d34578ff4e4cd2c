//! Runs the workers, and reads the backlog at intervals.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Worker;
use crate::plane::Plane;
use crate::plane::settings::PUT_DEADLINE;

/// Interval of reading the backlog, for missed wake-ups and appends of other nodes.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The interval on a node that does not send: only the backlog shows what other nodes have sent.
const LOOK_EVERY_WITHOUT_SENDING: Duration = Duration::from_millis(500);
/// Interval of pruning dead letters and of bounding leases.
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
    let mut bounding = Periodic::new();
    let mut pruning = Periodic::new();
    while !cancel.is_cancelled() {
        if looked_at.elapsed() >= look_every {
            looked_at = tokio::time::Instant::now();
            let read = plane.all_counters.begin_read();
            match plane.log.backlog().await {
                Ok(backlog) => {
                    plane.all_counters.refresh(read, &backlog);
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
        if was_set || bounding.is_due() {
            bounding.ended(bound_leases(&plane).await);
        }
        if pruning.is_due() {
            let pruned = plane.queue.prune(plane.cutoff(Duration::ZERO)).await;
            let pruned = pruned.inspect_err(|fault| {
                tracing::error!(cause = %fault.chain(), "cannot prune dead letters");
            });
            pruning.ended(pruned.is_ok());
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

/// Work that is done at the start and every [`PRUNE_EVERY`]. If it fails, it is done again at the next look: a database
/// that takes no writes at the start must not delay a delivery for the rest of the interval.
struct Periodic {
    due: tokio::time::Instant,
}

impl Periodic {
    fn new() -> Self {
        Self {
            due: tokio::time::Instant::now(),
        }
    }

    fn is_due(&self) -> bool {
        tokio::time::Instant::now() >= self.due
    }

    fn ended(&mut self, is_done: bool) {
        let wait = if is_done { PRUNE_EVERY } else { LOOK_EVERY };
        self.due = tokio::time::Instant::now() + wait;
    }
}

/// Ends leases that are longer than leases can be, as of a node whose clock was wrong, at their longest time. Returns
/// whether it could.
async fn bound_leases(plane: &Plane) -> bool {
    let longest = plane.settings.lease.max(2 * PUT_DEADLINE);
    let bounded = plane.queue.bound_leases(plane.clock.now().plus(longest));
    match bounded.await {
        Ok(_) => true,
        Err(fault) => {
            tracing::error!(cause = %fault.chain(), "cannot bound the leases of batches");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_failed_is_done_again_at_the_next_look() {
        let mut work = Periodic::new();
        assert!(work.is_due());
        work.ended(false);
        assert!(!work.is_due());
        tokio::time::advance(LOOK_EVERY).await;
        assert!(work.is_due());
        work.ended(true);
        tokio::time::advance(LOOK_EVERY).await;
        assert!(!work.is_due());
        tokio::time::advance(PRUNE_EVERY).await;
        assert!(work.is_due());
    }
}
