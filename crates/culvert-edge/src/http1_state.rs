//! State of an HTTP/1 connection that its driver and the open exchange share.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use culvert_base::sync::lock;
use culvert_http::http1::Violation;

use crate::recording::Unflushed;

/// Whose turn it is on an HTTP/1 connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Http1Turn {
    /// The client's: no request is open.
    Client = 0,
    /// Ours: a request is open.
    Edge = 1,
    /// Ours: the answer is complete but may not have left the process.
    Flush = 2,
    /// Nobody's: the connection is being taken down.
    Over = 3,
}

/// Why a request's body broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The client went away.
    Left,
    /// What came is refused.
    Refused(Violation),
}

/// State of an HTTP/1 connection; unused on HTTP/2.
#[derive(Debug, Default)]
pub(crate) struct Http1State {
    turn: AtomicU8,
    /// Payload bytes of the open request.
    payload: AtomicU64,
    /// The record of an answered exchange, until its last byte left.
    unflushed: Mutex<Option<Unflushed>>,
    broken: OnceLock<Broken>,
}

impl Http1State {
    pub(crate) fn turn(&self) -> Http1Turn {
        match self.turn.load(Ordering::Acquire) {
            0 => Http1Turn::Client,
            1 => Http1Turn::Edge,
            2 => Http1Turn::Flush,
            _ => Http1Turn::Over,
        }
    }

    pub(crate) fn set_turn(&self, turn: Http1Turn) {
        self.turn.store(turn as u8, Ordering::Release);
    }

    pub(crate) fn payload(&self) -> u64 {
        self.payload.load(Ordering::Relaxed)
    }

    pub(crate) fn set_payload(&self, bytes: u64) {
        self.payload.store(bytes, Ordering::Relaxed);
    }

    /// Keeps the record of an answered exchange until the answer has left.
    pub(crate) fn keep(&self, record: Unflushed) {
        *lock(&self.unflushed) = Some(record);
    }

    /// The record that was kept, if there is one.
    pub(crate) fn take_kept(&self) -> Option<Unflushed> {
        lock(&self.unflushed).take()
    }

    /// Notes why the open request's body broke off. The first word counts.
    pub(crate) fn broke(&self, why: Broken) {
        self.broken.get_or_init(|| why);
    }

    /// Why the open request's body broke off, if it did.
    pub(crate) fn broken(&self) -> Option<Broken> {
        self.broken.get().copied()
    }
}
