//! Traffic events that are kept for replays: each once, with every field, whoever subscribes to what.
//!
//! The recorder fills pieces of the traffic log; a task of its own writes them down, so that traffic and
//! its delivery wait for no disk here either. What cannot be written is held in bounded memory and tried
//! again; what comes beyond that is not kept, counted. What is in memory is what a crash takes.
//!
//! Not here: how a replay reads them (`replay`), how pieces are stored (the queue).

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use culvert_base::{Fault, Ksuid, Timestamp};
use culvert_events::Retained;
use culvert_store::{BatchClass, Bound};

use crate::batch::Batch;
use crate::plane::Plane;
use crate::replay::TrafficRange;

/// Pieces that are read at once while an event is looked for.
const PIECES: u32 = 4;

/// Writes pieces down until the recorder is done.
pub(crate) async fn run(plane: Arc<Plane>, cancel: CancellationToken) {
    while let Some((pieces, events, bytes)) = plane.pieces.take() {
        if pieces.is_empty() {
            plane.pieces.wake.notified().await;
            continue;
        }
        let mut pause = Duration::from_millis(50);
        loop {
            let Err(fault) = plane.queue.keep_traffic(pieces.clone()).await else {
                plane.meters.retained.add(events);
                break;
            };
            tracing::error!(cause = %fault.chain(), "cannot retain traffic events");
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
        // Until here it was in memory.
        let mut held = plane.pieces.lock();
        held.bytes = held.bytes.saturating_sub(bytes);
    }
}

/// Removes what is older, or more, than is to be kept; everything, when nothing is. How many pieces.
pub(crate) async fn prune(plane: &Plane) -> Result<u64, Fault> {
    let settings = &plane.settings;
    let cutoff = plane.clock.now().minus(settings.traffic_retention);
    let bytes_max = match settings.traffic_retention.is_zero() {
        true => 0,
        false => settings.traffic_retention_bytes,
    };
    let n_pruned = plane.queue.prune_traffic(cutoff, bytes_max).await?;
    plane
        .meters
        .retained_bytes
        .set(plane.queue.traffic().await?.bytes);
    Ok(n_pruned)
}

/// The events between two bounds, both inside, to the last there is now. `None` when a bound is an event
/// of `account` that is not kept.
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
        Bound::Event(id) => match find(plane, id, account).await? {
            Some((piece, _)) => (range.first, range.from_event) = (piece, Some(id.clone())),
            None => return Ok(None),
        },
    }
    match to {
        None => {}
        Some(Bound::At(at)) => {
            range.until = Some(*at);
            range.last = queue.traffic_until(*at).await?.unwrap_or(0).min(last);
        }
        Some(Bound::Event(id)) => match find(plane, id, account).await? {
            Some((piece, _)) => (range.last, range.to_event) = (piece, Some(id.clone())),
            None => return Ok(None),
        },
    }
    Ok(Some(range))
}

/// The piece that has an event of `account`, and when the event happened.
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
        for (piece, batch) in pieces.into_iter().filter_map(read) {
            let found = batch.deliveries().find(|one| one.event_id == id);
            if let Some(event) = found.and_then(|found| Retained::read(found.envelope))
                && **event.record.account() == *account
            {
                return Ok(Some((piece, event.record.at())));
            }
        }
    }
}

/// The position of a piece and what is in it; none of one that is damaged.
pub(crate) fn read(piece: culvert_store::Piece) -> Option<(i64, Batch)> {
    let batch = Batch::read(Arc::from(""), BatchClass::Traffic, piece.body?);
    Some((piece.id, batch.ok()?))
}
