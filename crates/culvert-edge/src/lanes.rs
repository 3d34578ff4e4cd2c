//! Threads that each serve their own connections.
//!
//! A connection, its exchanges and their upstream connections stay on one lane: no task is stolen, and a ready socket
//! wakes only the thread that serves it. Shared tasks (listeners, drains, fetches of policies) stay on the runtime that
//! the edge was started on.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use culvert_base::Fault;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

thread_local! {
    static IS_LANE: Cell<bool> = const { Cell::new(false) };
}

/// The lanes of an edge. Without lanes, everything stays on the runtime that the edge was started on.
#[derive(Debug)]
pub(crate) struct Lanes {
    handles: Vec<Handle>,
    next: AtomicUsize,
    /// Ends the threads when dropped.
    _end: DropGuard,
}

impl Lanes {
    /// Starts `count` lanes.
    ///
    /// # Errors
    ///
    /// When the system has no more threads or files.
    pub(crate) fn start(count: usize) -> Result<Self, Fault> {
        let end = CancellationToken::new();
        let start = || -> io::Result<Vec<Handle>> {
            let lane = |number| {
                let runtime = Builder::new_current_thread().enable_all().build()?;
                let (handle, end) = (runtime.handle().clone(), end.clone());
                std::thread::Builder::new()
                    .name(format!("edge-{number}"))
                    .spawn(move || {
                        IS_LANE.set(true);
                        runtime.block_on(end.cancelled());
                    })?;
                Ok(handle)
            };
            (0..count).map(lane).collect()
        };
        // If starting fails, dropping the guard ends those that were started.
        let guard = end.clone().drop_guard();
        let handles = start().map_err(|error| Fault::new("starting the edge's threads", error))?;
        Ok(Self {
            handles,
            next: AtomicUsize::new(0),
            _end: guard,
        })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.handles.len()
    }

    /// The lane of a number.
    pub(crate) fn get(&self, number: usize) -> Option<&Handle> {
        self.handles.get(number)
    }

    /// The lane of the next connection.
    pub(crate) fn next(&self) -> Option<&Handle> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        self.handles.get(next.checked_rem(self.handles.len())?)
    }
}

/// Whether this thread is a lane.
pub(crate) fn is_here() -> bool {
    IS_LANE.get()
}
