//! Pieces of the traffic log in memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use culvert_base::Timestamp;
use culvert_events::{Capture, Family, Kind, Selection, kinds};
use culvert_store::NewPiece;

use crate::batch::OpenBatch;
use crate::meters::Meters;

/// Maximum bytes of pieces in memory.
const HELD_BYTES_MAX: u64 = 16 << 20;

/// Bytes written together; one piece more at most.
const WRITE_BYTES: u64 = 4 << 20;

/// Every retained kind, with all its fields.
pub(crate) fn captures() -> impl Iterator<Item = (&'static Kind, Capture)> {
    retained_kinds().map(|kind| (kind, Capture::all(kind)))
}

/// The selection of each retained kind.
pub(crate) fn selections() -> Vec<Selection> {
    retained_kinds().map(Selection::all).collect()
}

fn retained_kinds() -> impl Iterator<Item = &'static Kind> {
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

/// Pieces that wait to be written.
#[derive(Debug, Default)]
pub(crate) struct PieceQueue {
    held: Mutex<QueuedPieces>,
    pub(crate) wake: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct QueuedPieces {
    pieces: VecDeque<OpenPiece>,
    pub(crate) bytes: u64,
    /// The recorder will add no more.
    is_last: bool,
}

impl PieceQueue {
    /// Adds a piece, or counts its events as not retained if the limit is reached.
    pub(crate) fn put(&self, meters: &Meters, piece: OpenPiece) {
        let bytes = bytes_of(&piece);
        let mut held = self.lock();
        if held.bytes.saturating_add(bytes) > HELD_BYTES_MAX {
            meters.not_retained.add(u64::from(piece.batch.len()));
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

    /// Takes the next pieces, with their events and bytes; `None` after the last.
    pub(crate) fn take(&self) -> Option<(Vec<NewPiece>, u64, u64)> {
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

    pub(crate) fn lock(&self) -> MutexGuard<'_, QueuedPieces> {
        self.held
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn bytes_of(piece: &OpenPiece) -> u64 {
    u64::try_from(piece.batch.bytes()).unwrap_or(u64::MAX)
}
