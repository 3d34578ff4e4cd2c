//! The state of a connection behind its lock, and the wakers of the tasks that wait for it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Instant;

use culvert_mux::{Connection, Event, StreamId};
use tokio::sync::Notify;

use crate::path::PathWatch;

pub(super) struct Shared {
    state: Mutex<State>,
    pub(super) counts: Counts,
    /// Notified when a stream is opened.
    pub(super) opened: Notify,
    pub(super) path: PathWatch,
}

/// What was counted of a connection and not read yet.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) opened: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) sent: AtomicU64,
    /// Number of reads that returned data. Never reset.
    pub(super) reads: AtomicU64,
}

impl Counts {
    pub(super) fn take(&self) -> SessionTraffic {
        SessionTraffic {
            opened: self.opened.swap(0, Ordering::Relaxed),
            received: self.received.swap(0, Ordering::Relaxed),
            sent: self.sent.swap(0, Ordering::Relaxed),
        }
    }
}

/// Streams and bytes of a connection, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionTraffic {
    /// Streams that this side opened.
    pub opened: u64,
    /// Bytes received from the peer, with all framing.
    pub received: u64,
    /// Bytes sent to it.
    pub sent: u64,
}

impl SessionTraffic {
    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds another connection.
    pub fn add(&mut self, other: Self) {
        self.opened = self.opened.saturating_add(other.opened);
        self.received = self.received.saturating_add(other.received);
        self.sent = self.sent.saturating_add(other.sent);
    }
}

impl Shared {
    pub(super) fn new(mux: Connection) -> Self {
        Self {
            state: Mutex::new(State {
                mux,
                streams: BTreeMap::new(),
                acceptor: None,
                watchers: Vec::new(),
                driver: None,
                reading: true,
                failure: None,
                room: Arc::default(),
                queued: 0,
                granted: 0,
                rests_none: false,
                is_silent: false,
            }),
            counts: Counts::default(),
            opened: Notify::new(),
            path: PathWatch::default(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

pub(super) struct State {
    pub(super) mux: Connection,
    /// The wakers of each stream.
    pub(super) streams: BTreeMap<StreamId, Wakers>,
    pub(super) acceptor: Option<Waker>,
    /// Tasks that wait for the end of the connection.
    pub(super) watchers: Vec<Waker>,
    /// The driver's waker, while it waits.
    pub(super) driver: Option<Waker>,
    /// Whether the driver reads input.
    pub(super) reading: bool,
    /// The error of the socket, if any.
    pub(super) failure: Option<String>,
    /// Wakes callers that queue for a stream, one per available stream.
    pub(super) room: Arc<Notify>,
    /// Number of queued callers.
    pub(super) queued: usize,
    /// Number of those that were woken and have not opened a stream yet.
    pub(super) granted: usize,
    /// Whether streams are no longer kept for reuse.
    pub(super) rests_none: bool,
    /// Whether the peer does not respond.
    pub(super) is_silent: bool,
}

#[derive(Default)]
pub(super) struct Wakers {
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
}

impl State {
    /// The wakers of all tasks with a new notification.
    pub(super) fn take_wakers(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        self.collect_wakers(&mut wakers);
        wakers
    }

    pub(super) fn collect_wakers(&mut self, wakers: &mut Vec<Waker>) {
        while let Some(event) = self.mux.next_event() {
            match event {
                Event::Readable(id) => {
                    wakers.extend(self.streams.get_mut(&id).and_then(|to| to.reader.take()));
                }
                Event::Writable(id) => {
                    wakers.extend(self.streams.get_mut(&id).and_then(|to| to.writer.take()));
                }
                Event::Opened => wakers.extend(self.acceptor.take()),
                Event::Ended => {
                    wakers.extend(self.acceptor.take());
                    wakers.append(&mut self.watchers);
                    self.room.notify_waiters();
                }
            }
        }
    }

    /// Wakes as many queued callers as there are available streams.
    pub(super) fn wake_queued(&mut self) {
        if self.queued <= self.granted {
            return;
        }
        let room = self.mux.room(Instant::now());
        while self.granted < room.min(self.queued) {
            self.granted += 1;
            self.room.notify_one();
        }
    }

    /// Has the driver woken when there is work for it.
    pub(super) fn set_driver(&mut self, waker: &Waker) {
        match &mut self.driver {
            Some(driver) => driver.clone_from(waker),
            None => self.driver = Some(waker.clone()),
        }
    }

    pub(super) fn driver_has_work(&self) -> bool {
        self.mux.has_output() || self.mux.wants_input() != self.reading
    }
}

/// Releases the lock, and then wakes the driver if it has work.
pub(super) trait ReleaseAndWakeDriver {
    fn release_and_wake_driver(self);
}

impl ReleaseAndWakeDriver for MutexGuard<'_, State> {
    fn release_and_wake_driver(mut self) {
        let driver = if self.driver_has_work() {
            self.driver.take()
        } else {
            None
        };
        drop(self);
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}

pub(super) fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        waker.wake();
    }
}
