//! Pieces of the traffic log in memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use culvert_base::Timestamp;
use culvert_events::{Capture, Family, Kind, Selection, kinds};
use culvert_store::NewPiece;

use crate::batch::OpenBatch;
use crate::meters::Meters;

/// Bytes of pieces in memory.
const HELD_BYTES_MAX: u64 = 16 << 20;

/// Bytes that are written together, or a piece more.
const WRITE_BYTES: u64 = 4 << 20;

/// Every kind that is kept, with all its fields.
pub(crate) fn captures() -> impl Iterator<Item = (&'static Kind, Capture)> {
    retained_kinds().map(|kind| (kind, Capture::all(kind)))
}

/// What is written of each kind.
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

/// Pieces on their way to the log.
#[derive(Debug, Default)]
pub(crate) struct PieceQueue {
    held: Mutex<QueuedPieces>,
    pub(crate) wake: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct QueuedPieces {
    pieces: VecDeque<OpenPiece>,
    pub(crate) bytes: u64,
    /// The recorder will fill no more.
    is_last: bool,
}

impl PieceQueue {
    /// Hands over a piece, or counts it as not kept if too much waits.
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

    /// What is written next, with its number of events and bytes; `None` after the last.
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
