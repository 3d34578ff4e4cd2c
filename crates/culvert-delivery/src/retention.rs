//! What is kept goes in time: of the audit log what is older than its retention, in small steps, never
//! before every reader has passed it; of the traffic log what is older or more than it is to hold.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use culvert_base::Fault;

use crate::plane::Plane;
use crate::{dispatcher, replayer, retained};

/// Rows removed in one transaction.
const ROWS: u32 = 512;
/// How often the log is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often old rows are looked for.
const PRUNE_EVERY: Duration = Duration::from_secs(600);
/// The same in the traffic log, which grows faster.
const PRUNE_TRAFFIC_EVERY: Duration = Duration::from_secs(30);
/// How often the head is written to the log of the process, where it is out of reach for whoever
/// changes the database.
const SAY_EVERY: Duration = Duration::from_secs(3600);

/// Runs until cancelled.
pub(crate) async fn run(plane: Arc<Plane>, cancel: CancellationToken) {
    let mut pruned_at: Option<tokio::time::Instant> = None;
    let mut said_at: Option<tokio::time::Instant> = None;
    let mut pruned_traffic_at: Option<tokio::time::Instant> = None;
    while !cancel.is_cancelled() {
        let is_due =
            |at: Option<tokio::time::Instant>, every| at.is_none_or(|at| at.elapsed() >= every);
        // Before the first table nothing is known of replays.
        let knows_replays = *plane.tables.borrow() > 0;
        let mut pause = LOOK_EVERY;
        if knows_replays && is_due(pruned_at, PRUNE_EVERY) {
            match prune(&plane).await {
                Ok(0) => pruned_at = Some(tokio::time::Instant::now()),
                // There may be more.
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

/// Removes some of what is older than the retention and passed by dispatcher and replays; how many
/// rows.
pub(crate) async fn prune(plane: &Plane) -> Result<u64, Fault> {
    let cutoff = plane.clock.now().minus(plane.settings.audit_retention);
    let copied = plane.queue.cursor(dispatcher::CURSOR).await?;
    let passed = match replayer::needed_from(plane).await? {
        Some(needed) => copied.min(needed.saturating_sub(1)),
        None => copied,
    };
    let log = plane.store.audit_log();
    let Some(up_to) = log.older(cutoff, passed, ROWS).await? else {
        return Ok(0);
    };
    let n_removed = plane.store.prune_outbox(up_to).await?;
    plane.meters.audit_pruned.add(n_removed);
    Ok(n_removed)
}
