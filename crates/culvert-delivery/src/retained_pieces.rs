//! Pieces of the traffic log in memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use culvert_base::Timestamp;
use culvert_events::{Capture, Family, Kind, Selection, kinds};
use culvert_store::NewPiece;

use crate::batch::{BatchLimits, OpenBatch};
use crate::meters::Meters;

/// Maximum bytes of pieces in memory.
const HELD_BYTES_MAX: u64 = 16 << 20;

/// Bytes written together. One more piece may exceed it.
const WRITE_BYTES: u64 = 4 << 20;

/// Maximum size of a piece that is joined from several.
const JOINED: BatchLimits = BatchLimits {
    events_max: 4096,
    bytes_max: 512 << 10,
};

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
    /// Used for events without an endpoint.
    no_endpoint: Arc<str>,
}

impl OpenPiece {
    pub(crate) fn new(at: Timestamp) -> Self {
        Self {
            batch: OpenBatch::default(),
            first_at: at,
            last_at: at,
            no_endpoint: Arc::from(""),
        }
    }

    pub(crate) fn push(&mut self, at: Timestamp, endpoint: Option<&Arc<str>>, envelope: &[u8]) {
        let endpoint = endpoint.unwrap_or(&self.no_endpoint);
        self.batch.push(endpoint, envelope);
        self.first_at = self.first_at.min(at);
        self.last_at = self.last_at.max(at);
    }

    /// Adds all events of `other` if there is room. Returns whether there was.
    fn join(&mut self, other: &Self) -> bool {
        let fits = self.batch.has_room_for(&other.batch, JOINED);
        if fits {
            self.batch.join(&other.batch);
            self.first_at = self.first_at.min(other.first_at);
            self.last_at = self.last_at.max(other.last_at);
        }
        fits
    }

    fn finish(self) -> NewPiece {
        let endpoints = self.batch.subscriptions().iter();
        let endpoints = endpoints.filter(|endpoint| !endpoint.is_empty());
        NewPiece {
            first_at: self.first_at,
            last_at: self.last_at,
            endpoints: endpoints.map(|endpoint| endpoint.to_string()).collect(),
            body: self.batch.finish().stored,
        }
    }
}

/// Pieces that wait to be written.
#[derive(Debug, Default)]
pub(crate) struct PieceQueue {
    held: Mutex<QueuedPieces>,
    wake: Notify,
}

#[derive(Debug, Default)]
pub(crate) struct QueuedPieces {
    pieces: VecDeque<OpenPiece>,
    pub(crate) bytes: u64,
    /// When the oldest waiting piece was added.
    since: Option<Instant>,
    /// Set when the recorder will add no more pieces.
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
        held.since.get_or_insert_with(Instant::now);
        held.pieces.push_back(piece);
        drop(held);
        self.wake.notify_one();
    }

    /// Notes that the recorder has finished.
    pub(crate) fn finish(&self) {
        self.lock().is_last = true;
        self.wake.notify_one();
    }

    /// Waits until pieces are due: the oldest is `keep_after` old, or there are enough. Returns
    /// false after the last piece.
    pub(crate) async fn wait(&self, keep_after: Duration) -> bool {
        loop {
            let notified = self.wake.notified();
            let (is_enough, is_last, since) = {
                let held = self.lock();
                let is_enough = held.bytes >= WRITE_BYTES;
                (is_enough, held.is_last, held.since)
            };
            match since {
                Some(_) if is_enough || is_last => return true,
                Some(since) if since.elapsed() >= keep_after => return true,
                Some(since) => tokio::select! {
                    () = notified => {}
                    () = tokio::time::sleep_until(since + keep_after) => {}
                },
                None if is_last => return false,
                None => notified.await,
            }
        }
    }

    /// Takes the next pieces, with their events and bytes.
    pub(crate) fn take(&self) -> (Vec<NewPiece>, u64, u64) {
        let mut held = self.lock();
        let (mut pieces, mut events, mut bytes) = (Vec::<OpenPiece>::new(), 0, 0);
        while bytes < WRITE_BYTES
            && let Some(piece) = held.pieces.pop_front()
        {
            events += u64::from(piece.batch.len());
            bytes += bytes_of(&piece);
            let is_joined = pieces.last_mut().is_some_and(|open| open.join(&piece));
            if !is_joined {
                pieces.push(piece);
            }
        }
        held.since = (!held.pieces.is_empty()).then(Instant::now);
        drop(held);
        let pieces = pieces.into_iter().map(OpenPiece::finish);
        (pieces.collect(), events, bytes)
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
