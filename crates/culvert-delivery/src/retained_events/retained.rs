//! The traffic log: traffic events retained for searches and replays, each once with every field.
//!
//! The threads that offer events fill pieces (`open_pieces`), and the recorder closes them. A task here joins and
//! writes them in groups within a second, so traffic and its delivery never wait for the disk. Several threads fill
//! pieces concurrently, so neighbouring pieces overlap in time.
//!
//! Pieces that cannot be written stay in bounded memory and are written later. Events beyond the limit are not
//! retained, and counted. A crash loses the pieces in memory, which no counter shows.
//!
//! Not here: the form of pieces (`stored_piece`), how searches and replays read them (`event_query`, `replayer`), how
//! the queue stores pieces.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use culvert_base::{Fault, Ksuid, Timestamp};
use culvert_store::Bound;

use crate::dispatch::replay::{EventBound, TrafficRange};
use crate::plane::Plane;
use crate::retained_events::retained_bodies;
use crate::retained_events::stored_piece::StoredPiece;

/// Pieces per read in a search for an event.
const PIECES: u32 = 4;

/// Writes pieces until the recorder has finished.
pub(crate) async fn run(plane: Arc<Plane>, cancel: CancellationToken) {
    let mut is_failing = false;
    while plane.pieces.wait(plane.settings.keep_after).await {
        let (pieces, events, bytes) = plane.pieces.take();
        let mut pause = Duration::from_millis(50);
        loop {
            let Err(fault) = plane.queue.keep_traffic(pieces.clone()).await else {
                plane.meters.retained.add(events);
                if std::mem::take(&mut is_failing) {
                    tracing::info!("traffic events are retained again");
                }
                break;
            };
            if !std::mem::replace(&mut is_failing, true) {
                tracing::error!(cause = %fault.chain(), "cannot retain traffic events");
            }
            if cancel.is_cancelled() {
                plane.meters.not_retained.add(events);
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = cancel.cancelled() => {}
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        }
        // The pieces used memory until here.
        let mut held = plane.pieces.lock();
        held.bytes = held.bytes.saturating_sub(bytes);
    }
}

/// Removes pieces beyond the retention time or size, or all if nothing is retained. Returns how many.
pub(crate) async fn prune(plane: &Plane) -> Result<u64, Fault> {
    let settings = &plane.settings;
    let cutoff = plane.cutoff(settings.traffic_retention);
    let bytes_max = match settings.traffic_retention.is_zero() {
        true => 0,
        false => settings.traffic_retention_bytes,
    };
    // Captured messages take at most half of the space.
    let of_bodies = retained_bodies::prune(plane, cutoff, bytes_max / 2).await?;
    let bytes_max = bytes_max.saturating_sub(of_bodies);
    let n_pruned = plane.queue.prune_traffic(cutoff, bytes_max).await?;
    plane
        .meters
        .retained_bytes
        .set(plane.queue.traffic().await?.bytes);
    Ok(n_pruned)
}

/// The pieces between two bounds, both inclusive, up to the current end of the log. `None` if a bound is an event of
/// `account` that is not retained.
pub(crate) async fn range(
    plane: &Plane,
    from: &Bound,
    to: Option<&Bound>,
    account: &str,
) -> Result<Option<TrafficRange>, Fault> {
    let queue = &plane.queue;
    let last = queue.settled_traffic().await?.last;
    let mut range = TrafficRange {
        last,
        ..TrafficRange::default()
    };
    match from {
        Bound::At(at) => {
            range.since = Some(*at);
            range.first = queue.traffic_since(*at).await?.unwrap_or(last + 1);
        }
        Bound::Event(id) => {
            let Some((piece, at)) = find(plane, id, account).await? else {
                return Ok(None);
            };
            range.since = Some(at);
            range.first = queue.traffic_since(at).await?.unwrap_or(piece).min(piece);
            let id = id.clone();
            range.from_event = Some(EventBound { piece, id });
        }
    }
    match to {
        None => {}
        Some(Bound::At(at)) => {
            range.until = Some(*at);
            range.last = queue.traffic_until(*at).await?.unwrap_or(0).min(last);
        }
        Some(Bound::Event(id)) => {
            let Some((piece, at)) = find(plane, id, account).await? else {
                return Ok(None);
            };
            range.until = Some(at);
            let until = queue.traffic_until(at).await?;
            range.last = until.unwrap_or(piece).max(piece).min(last);
            let id = id.clone();
            range.to_event = Some(EventBound { piece, id });
        }
    }
    Ok(Some(range))
}

/// The piece with an event of `account`, and the time of the event.
pub(crate) async fn find(
    plane: &Plane,
    id: &str,
    account: &str,
) -> Result<Option<(i64, Timestamp)>, Fault> {
    let second = culvert_base::id::split(id).and_then(|(_, body)| body.parse::<Ksuid>().ok());
    let Some(second) = second.map(|ksuid| ksuid.at()) else {
        return Ok(None);
    };
    let queue = &plane.queue;
    let until = second.plus(Duration::from_secs(1));
    let first = queue.traffic_since(second).await?;
    let (Some(first), Some(last)) = (first, queue.traffic_until(until).await?) else {
        return Ok(None);
    };
    let mut after = first - 1;
    loop {
        let pieces = queue.traffic_pieces(after, last, PIECES).await?;
        let Some(end) = pieces.last() else {
            return Ok(None);
        };
        after = end.id;
        for (piece, stored) in pieces.into_iter().filter_map(read) {
            let found = stored.events().find(|one| one.id() == id);
            let mut parsed = None;
            if let Some(record) = found.as_ref().and_then(|one| one.record(&mut parsed))
                && **record.account() == *account
            {
                return Ok(Some((piece, record.at())));
            }
        }
    }
}

/// The position and the events of a piece; `None` if it is damaged.
pub(crate) fn read(piece: culvert_store::Piece) -> Option<(i64, StoredPiece)> {
    Some((piece.id, StoredPiece::read(piece.body?)?))
}
