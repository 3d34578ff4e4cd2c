//! Pieces of the traffic log in memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use culvert_base::Timestamp;
use culvert_events::{
    Capture, EventId, EventKind, Family, Packer, PieceSummary, Record, Selection, kinds,
};
use culvert_store::NewPiece;

use crate::plane::meters::Meters;
use crate::recorder::record_shards::n_shards;
use crate::retained_events::stored_piece::{push_segment, segments, stored};

/// Maximum bytes of closed pieces in memory, for each thread that fills one: the pieces of all may be closed together. The
/// open pieces need further memory, each up to the size of a piece.
const HELD_BYTES_PER_SHARD: usize = 2 << 20;

/// Bytes written together. The last piece may exceed it.
const WRITE_BYTES: u64 = 4 << 20;

/// Maximum number of events of a piece that is joined from several, and of the bytes of their values. It limits the
/// memory for reading a piece.
const JOINED_EVENTS_MAX: u32 = 2048;
const JOINED_VALUES_MAX: usize = 1 << 20;

/// Every retained kind, with all its fields.
pub(crate) fn captures() -> impl Iterator<Item = (&'static EventKind, Capture)> {
    retained_kinds().map(|kind| (kind, Capture::all(kind)))
}

/// The selection of each retained kind.
pub(crate) fn selections() -> Vec<Selection> {
    retained_kinds().map(Selection::all).collect()
}

fn retained_kinds() -> impl Iterator<Item = &'static EventKind> {
    let kinds = kinds::ALL.iter().copied();
    kinds.filter(|kind| kind.family == Family::Traffic)
}

/// A piece being filled.
#[derive(Debug)]
pub(crate) struct OpenPiece {
    packer: Packer,
    first_at: Timestamp,
    last_at: Timestamp,
    /// Used for events without an endpoint.
    no_endpoint: Arc<str>,
}

/// A piece that waits to be written.
#[derive(Debug)]
struct ClosedPiece {
    body: Vec<u8>,
    endpoints: Vec<Arc<str>>,
    n_events: u32,
    value_bytes: usize,
    first_at: Timestamp,
    last_at: Timestamp,
}

impl OpenPiece {
    pub(crate) fn new(at: Timestamp) -> Self {
        Self {
            packer: Packer::default(),
            first_at: shown(at),
            last_at: at,
            no_endpoint: Arc::from(""),
        }
    }

    /// Adds an event. Returns whether the piece is then full.
    pub(crate) fn push(&mut self, id: &EventId, record: Record) -> bool {
        self.extend_to(record.at());
        self.packer.push(id.as_bytes(), record, &self.no_endpoint);
        self.is_full()
    }

    /// Like [`Self::push`], for a record that the caller keeps.
    pub(crate) fn push_copy(&mut self, id: &EventId, record: &Record) -> bool {
        self.extend_to(record.at());
        self.packer
            .push_copy(id.as_bytes(), record, &self.no_endpoint);
        self.is_full()
    }

    fn extend_to(&mut self, at: Timestamp) {
        self.first_at = self.first_at.min(shown(at));
        self.last_at = self.last_at.max(at);
    }

    /// Events so far.
    pub(crate) fn n_events(&self) -> u64 {
        self.packer.len().into()
    }

    fn is_full(&self) -> bool {
        self.packer.is_full()
            || self.packer.len() >= JOINED_EVENTS_MAX
            || self.packer.value_bytes() >= JOINED_VALUES_MAX
    }

    fn close(self) -> ClosedPiece {
        let (n_events, value_bytes) = (self.packer.len(), self.packer.value_bytes());
        let (segment, endpoints) = self.packer.finish();
        let mut body = Vec::with_capacity(segment.len() + 4);
        push_segment(&mut body, &segment);
        ClosedPiece {
            body,
            endpoints,
            n_events,
            value_bytes,
            first_at: self.first_at,
            last_at: self.last_at,
        }
    }
}

/// A time as events show it, in whole milliseconds. Searches compare it with this one.
fn shown(at: Timestamp) -> Timestamp {
    Timestamp::from_unix_millis(at.unix_millis())
}

impl ClosedPiece {
    fn bytes(&self) -> u64 {
        u64::try_from(self.body.len()).unwrap_or(u64::MAX)
    }

    /// Adds all events of `other`, or returns it if there is no room.
    fn join(&mut self, other: Self) -> Option<Self> {
        let n_events = self.n_events.saturating_add(other.n_events);
        let value_bytes = self.value_bytes.saturating_add(other.value_bytes);
        if n_events > JOINED_EVENTS_MAX || value_bytes > JOINED_VALUES_MAX {
            return Some(other);
        }
        self.body.extend_from_slice(&other.body);
        self.endpoints.extend(other.endpoints);
        (self.n_events, self.value_bytes) = (n_events, value_bytes);
        self.first_at = self.first_at.min(other.first_at);
        self.last_at = self.last_at.max(other.last_at);
        None
    }

    fn finish(mut self) -> NewPiece {
        self.endpoints.sort_unstable();
        self.endpoints.dedup();
        let endpoints = self.endpoints.iter();
        let endpoints = endpoints.filter(|endpoint| !endpoint.is_empty());
        let mut summary = PieceSummary::default();
        segments(&self.body).for_each(|segment| summary.add(segment));
        NewPiece {
            first_at: self.first_at,
            last_at: self.last_at,
            endpoints: endpoints.map(|endpoint| endpoint.to_string()).collect(),
            summary: summary.finish(),
            body: stored(self.body),
        }
    }
}

/// Pieces that wait to be written.
#[derive(Debug)]
pub(crate) struct PieceQueue {
    bytes_max: u64,
    held: Mutex<QueuedPieces>,
    wake: Notify,
}

impl Default for PieceQueue {
    fn default() -> Self {
        let bytes_max = n_shards() * HELD_BYTES_PER_SHARD;
        Self {
            bytes_max: u64::try_from(bytes_max).unwrap_or(u64::MAX),
            held: Mutex::default(),
            wake: Notify::new(),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct QueuedPieces {
    pieces: VecDeque<ClosedPiece>,
    pub(crate) bytes: u64,
    /// When the oldest waiting piece was added.
    since: Option<Instant>,
    /// Set when the recorder will add no more pieces.
    is_last: bool,
}

impl PieceQueue {
    /// Adds a piece, or counts its events as not retained if the limit is reached.
    pub(crate) fn put(&self, meters: &Meters, piece: OpenPiece) {
        let piece = piece.close();
        let bytes = piece.bytes();
        let mut held = self.lock();
        if held.bytes.saturating_add(bytes) > self.bytes_max {
            meters.not_retained.add(u64::from(piece.n_events));
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
        let (mut pieces, mut events, mut bytes) = (Vec::<ClosedPiece>::new(), 0, 0);
        while bytes < WRITE_BYTES
            && let Some(piece) = held.pieces.pop_front()
        {
            events += u64::from(piece.n_events);
            bytes += piece.bytes();
            let left = match pieces.last_mut() {
                Some(open) => open.join(piece),
                None => Some(piece),
            };
            pieces.extend(left);
        }
        held.since = (!held.pieces.is_empty()).then(Instant::now);
        drop(held);
        let pieces = pieces.into_iter().map(ClosedPiece::finish);
        (pieces.collect(), events, bytes)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, QueuedPieces> {
        self.held
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
