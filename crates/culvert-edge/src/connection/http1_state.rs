//! State of an HTTP/1 connection that its driver and the open exchange share.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use culvert_base::sync::lock;
use culvert_http::http1::Violation;

use crate::recording::Unflushed;

/// Which side acts next on an HTTP/1 connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Http1Turn {
    /// The client: no request is open.
    Client = 0,
    /// The edge: a request is open.
    Edge = 1,
    /// The edge: the response is complete and may not have left the process.
    Flush = 2,
    /// Neither: the connection is closing.
    Over = 3,
}

/// Why a request's body is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The client has gone.
    Left,
    /// The body is malformed or too slow.
    Refused(Violation),
}

/// State of an HTTP/1 connection; unused on HTTP/2.
#[derive(Debug, Default)]
pub(crate) struct Http1State {
    turn: AtomicU8,
    /// Payload bytes of the open request.
    payload: AtomicU64,
    /// Whether the client still waits for 100 (Continue).
    awaits_continue: AtomicBool,
    /// Whether the open request waits for a place at its upstream.
    is_queued: AtomicBool,
    /// The record of an answered exchange, until its last byte has left.
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

    /// Whether the client waits for 100 (Continue) before it sends the body of the open request. After a final response it may
    /// send the body or not, so no other request follows (RFC 9110 10.1.1).
    pub(crate) fn awaits_continue(&self) -> bool {
        self.awaits_continue.load(Ordering::Acquire)
    }

    pub(crate) fn set_awaits_continue(&self, awaits: bool) {
        self.awaits_continue.store(awaits, Ordering::Release);
    }

    /// Whether the open request waits for a place at its upstream.
    pub(crate) fn is_queued(&self) -> bool {
        self.is_queued.load(Ordering::Relaxed)
    }

    pub(crate) fn set_queued(&self, is_queued: bool) {
        self.is_queued.store(is_queued, Ordering::Relaxed);
    }

    /// Keeps the record of an answered exchange until the response has left.
    pub(crate) fn keep(&self, record: Unflushed) {
        *lock(&self.unflushed) = Some(record);
    }

    /// Takes the record that was kept.
    pub(crate) fn take_kept(&self) -> Option<Unflushed> {
        lock(&self.unflushed).take()
    }

    /// Records why the open request's body is incomplete. The first reason counts.
    pub(crate) fn set_broken(&self, why: Broken) {
        self.broken.get_or_init(|| why);
    }

    /// Why the open request's body is incomplete, if it is.
    pub(crate) fn broken(&self) -> Option<Broken> {
        self.broken.get().copied()
    }
}
