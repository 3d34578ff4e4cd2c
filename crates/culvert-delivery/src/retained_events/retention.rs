//! Retention: removes old rows of the audit log in small steps, after every reader has passed them, and old or excess
//! pieces of the traffic log.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use culvert_base::Fault;

use crate::dispatch::{dispatcher, replayer};
use crate::plane::Plane;
use crate::retained_events::retained;

/// Rows removed in one transaction.
const ROWS: u32 = 512;
/// Rows that one event announces.
const ANNOUNCED_ROWS: u32 = 16_384;
/// Interval of reading the extent of the audit log.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Interval of pruning the audit log.
const PRUNE_EVERY: Duration = Duration::from_secs(600);
/// Interval of pruning the traffic log, which grows faster.
const PRUNE_TRAFFIC_EVERY: Duration = Duration::from_secs(30);
/// Interval of writing the head of the audit log to the process log, which an attacker on the database cannot
/// change.
const SAY_EVERY: Duration = Duration::from_secs(3600);

/// Runs until cancelled.
pub(crate) async fn run(plane: Arc<Plane>, cancel: CancellationToken) {
    let mut pruned_at: Option<tokio::time::Instant> = None;
    let mut said_at: Option<tokio::time::Instant> = None;
    let mut pruned_traffic_at: Option<tokio::time::Instant> = None;
    while !cancel.is_cancelled() {
        let is_due =
            |at: Option<tokio::time::Instant>, every| at.is_none_or(|at| at.elapsed() >= every);
        // Before the first table, replays are unknown.
        let knows_replays = *plane.tables.borrow() > 0;
        let mut pause = LOOK_EVERY;
        if knows_replays && is_due(pruned_at, PRUNE_EVERY) {
            match prune(&plane).await {
                Ok(0) => pruned_at = Some(tokio::time::Instant::now()),
                // There may be more rows to remove.
                Ok(_) => pause = Duration::ZERO,
                Err(fault) => {
                    tracing::error!(cause = %fault.chain(), "cannot prune the audit log");
                }
            }
        }
        if is_due(pruned_traffic_at, PRUNE_TRAFFIC_EVERY) {
            pruned_traffic_at = Some(tokio::time::Instant::now());
            if let Err(fault) = retained::prune(&plane).await {
                tracing::error!(cause = %fault.chain(), "cannot prune the traffic log");
            }
        }
        // Indexes rows that a node of an older version wrote.
        if let Err(fault) = plane.store.index_events().await {
            tracing::error!(cause = %fault.chain(), "cannot index the audit log");
        }
        match plane.store.audit_log().extent().await {
            Ok(extent) => {
                plane.meters.audit_events.set(extent.events());
                plane.meters.audit_head.set(extent.head.seq.unsigned_abs());
                if is_due(said_at, SAY_EVERY) {
                    said_at = Some(tokio::time::Instant::now());
                    tracing::info!(head = %extent.head, "head of the audit log");
                }
            }
            Err(fault) => {
                tracing::error!(cause = %fault.chain(), "cannot read the audit log");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = cancel.cancelled() => {}
        }
    }
}

/// Removes rows older than the retention that the dispatcher and all replays have passed, that no hold keeps, and that an
/// event names. Returns how many.
pub(crate) async fn prune(plane: &Plane) -> Result<u64, Fault> {
    let Some((notice, holds)) = plane.pruning.get() else {
        return Ok(0);
    };
    let cutoff = plane.cutoff(plane.settings.audit_retention);
    let copied = plane.queue.cursor(dispatcher::CURSOR).await?;
    let passed = match replayer::needed_from(plane).await? {
        Some(needed) => copied.min(needed.saturating_sub(1)),
        None => copied,
    };
    let log = plane.store.audit_log();
    let Some(all) = log.expired(cutoff, passed, ANNOUNCED_ROWS).await? else {
        plane.meters.audit_held_from.set(0);
        return Ok(0);
    };
    let first = log.extent().await?.anchor.seq.saturating_add(1);
    let released = holds.released(first, all.up_to()).await?;
    let held_from = match released.is_held {
        true => released.up_to.saturating_add(1).unsigned_abs(),
        false => 0,
    };
    plane.meters.audit_held_from.set(held_from);
    if released.up_to < first {
        return Ok(0);
    }
    let up_to = notice.announce(first, released.up_to).await?;
    let passed = passed.min(up_to).min(released.up_to);
    let Some(expired) = log.expired(cutoff, passed, ROWS).await? else {
        return Ok(0);
    };
    let n_removed = plane.store.prune_outbox(expired, released.deciding).await?;
    plane.meters.audit_pruned.add(n_removed);
    Ok(n_removed)
}
