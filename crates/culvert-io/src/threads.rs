//! Threads that each serve their own connections.
//!
//! A connection, its exchanges and their upstream connections stay on one thread: no task is stolen, and a ready socket
//! wakes only the thread that serves it. Shared tasks (listeners, drains, fetches of policies) stay on the runtime that
//! the edge was started on.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use culvert_base::Fault;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

thread_local! {
    static IS_EDGE_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// The threads of an edge. Without them, everything stays on the runtime that the edge was started on.
#[derive(Debug)]
pub struct ConnectionThreads {
    handles: Vec<Handle>,
    next: AtomicUsize,
    /// Ends the threads when dropped.
    _end: DropGuard,
}

impl ConnectionThreads {
    /// Starts `count` threads.
    ///
    /// # Errors
    ///
    /// The system has no more threads or file descriptors.
    pub fn start(count: usize) -> Result<Self, Fault> {
        let end = CancellationToken::new();
        let start = || -> io::Result<Vec<Handle>> {
            let thread = |number| {
                let runtime = Builder::new_current_thread().enable_all().build()?;
                let (handle, end) = (runtime.handle().clone(), end.clone());
                std::thread::Builder::new()
                    .name(format!("edge-{number}"))
                    .spawn(move || {
                        IS_EDGE_THREAD.set(true);
                        runtime.block_on(end.cancelled());
                    })?;
                Ok(handle)
            };
            (0..count).map(thread).collect()
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

    /// The number of threads.
    pub fn count(&self) -> usize {
        self.handles.len()
    }

    /// The runtime of a thread.
    pub fn get(&self, number: usize) -> Option<&Handle> {
        self.handles.get(number)
    }

    /// The runtime of the thread that serves the next connection.
    pub fn next(&self) -> Option<&Handle> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        self.handles.get(next.checked_rem(self.handles.len())?)
    }
}

/// Whether the current thread serves connections of the edge.
#[inline]
pub fn is_current() -> bool {
    IS_EDGE_THREAD.get()
}
