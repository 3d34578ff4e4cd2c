//! Traffic events that are kept for replays: each once, with every field, whoever subscribes to what.
//!
//! The recorder fills pieces of the traffic log; a task of its own writes them down, so that traffic and
//! its delivery wait for no disk here either. What cannot be written is held in bounded memory and tried
//! again; what comes beyond that is not kept, counted. What is in memory is what a crash takes.
//!
//! Not here: how a replay reads them (`replay`), how pieces are stored (the queue).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use culvert_base::{Fault, Ksuid, Timestamp};
use culvert_events::{Capture, Family, Kind, Retained, Selection, kinds};
use culvert_store::{BatchClass, Bound, NewPiece};

use crate::Plane;
use crate::batch::{Batch, OpenBatch};

/// Bytes of pieces in memory.
const HELD_BYTES_MAX: u64 = 16 << 20;
/// Bytes that are written together, or a piece more.
const WRITE_BYTES: u64 = 4 << 20;
/// Pieces that are read at once while an event is looked for.
const PIECES: u32 = 4;

/// Every kind that is kept, with all its fields.
pub(crate) fn captures() -> impl Iterator<Item = (&'static Kind, Capture)> {
    kept_kinds().map(|kind| (kind, Capture::all(kind)))
}

/// What is written of each kind.
pub(crate) fn selections() -> Vec<Selection> {
    kept_kinds().map(Selection::all).collect()
}

fn kept_kinds() -> impl Iterator<Item = &'static Kind> {
    let kinds = kinds::ALL.iter().copied();
    kinds.filter(|kind| kind.family == Family::Traffic)
}

/// A piece being filled.
#[derive(Debug)]
pub(crate) struct OpenPiece {
    batch: OpenBatch,
    first_at: Timestamp,
    last_at: Timestamp,
    nobody: Arc<str>,
}

impl OpenPiece {
    pub(crate) fn new(at: Timestamp) -> Self {
        Self {
            batch: OpenBatch::default(),
            first_at: at,
            last_at: at,
            nobody: Arc::from(""),
        }
    }

    pub(crate) fn push(&mut self, at: Timestamp, envelope: &[u8]) {
        self.batch.push(&self.nobody, envelope);
        self.first_at = self.first_at.min(at);
        self.last_at = self.last_at.max(at);
    }
}

/// Pieces on their way to the log.
#[derive(Debug, Default)]
pub(crate) struct Keeping {
    held: Mutex<Held>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct Held {
    pieces: VecDeque<OpenPiece>,
    bytes: u64,
    /// The recorder will fill no more.
    is_last: bool,
}

impl Keeping {
    /// Hands over a piece, or counts it as not kept if too much waits.
    pub(crate) fn put(&self, plane: &Plane, piece: OpenPiece) {
        let bytes = bytes_of(&piece);
        let mut held = self.lock();
        if held.bytes.saturating_add(bytes) > HELD_BYTES_MAX {
            plane.meters.unkept.add(u64::from(piece.batch.len()));
            return;
        }
        held.bytes += bytes;
        held.pieces.push_back(piece);
        drop(held);
        self.wake.notify_one();
    }

    /// The recorder is done.
    pub(crate) fn finish(&self) {
        self.lock().is_last = true;
        self.wake.notify_one();
    }

    /// What is written next, with its number of events and bytes; `None` after the last.
    fn take(&self) -> Option<(Vec<NewPiece>, u64, u64)> {
        let mut held = self.lock();
        let (mut pieces, mut events, mut bytes) = (Vec::new(), 0, 0);
        while bytes < WRITE_BYTES
            && let Some(piece) = held.pieces.pop_front()
        {
            events += u64::from(piece.batch.len());
            bytes += bytes_of(&piece);
            pieces.push(NewPiece {
                first_at: piece.first_at,
                last_at: piece.last_at,
                body: piece.batch.finish().stored,
            });
        }
        (!pieces.is_empty() || !held.is_last).then_some((pieces, events, bytes))
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn bytes_of(piece: &OpenPiece) -> u64 {
    u64::try_from(piece.batch.bytes()).unwrap_or(u64::MAX)
}

/// Writes pieces down until the recorder is done.
pub(crate) async fn run(plane: Arc<Plane>, cancel: CancellationToken) {
    while let Some((pieces, events, bytes)) = plane.keeping.take() {
        if pieces.is_empty() {
            plane.keeping.wake.notified().await;
            continue;
        }
        let mut pause = Duration::from_millis(50);
        loop {
            let Err(fault) = plane.queue.keep_traffic(pieces.clone()).await else {
                plane.meters.kept.add(events);
                break;
            };
            tracing::error!(cause = %fault.chain(), "cannot retain traffic events");
            if cancel.is_cancelled() {
                plane.meters.unkept.add(events);
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = cancel.cancelled() => {}
            }
            pause = (pause * 2).min(Duration::from_secs(1));
        }
        // Until here it was in memory.
        let mut held = plane.keeping.lock();
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
        .kept_bytes
        .set(plane.queue.traffic().await?.bytes);
    Ok(n_pruned)
}

/// A part of the traffic log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficRange {
    /// The first piece; beyond `last` in an empty range.
    pub first: i64,
    /// The last piece.
    pub last: i64,
    /// The event in the first piece that the range begins with.
    pub from_event: Option<String>,
    /// The event in the last piece that it ends with.
    pub to_event: Option<String>,
    /// Of the pieces, what happened no earlier,
    pub since: Option<Timestamp>,
    /// and no later.
    pub until: Option<Timestamp>,
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
