//! Upstream connections that go from one request straight to another that waits for one.
//!
//! An agent carries a limited number of streams. When all are in use, a request that ends gives its connection to
//! one that waits, instead of closing it so that another can be opened: that would cost both ends a stream for each
//! request.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use culvert_base::sync::lock;
use tokio::sync::Notify;

/// Connections on their way to requests that wait.
#[derive(Debug)]
pub(super) struct Handover<T> {
    waiting: AtomicUsize,
    /// At most one for each request that waits.
    given: Mutex<Vec<T>>,
    arrived: Notify,
}

impl<T> Default for Handover<T> {
    fn default() -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            given: Mutex::new(Vec::new()),
            arrived: Notify::new(),
        }
    }
}

impl<T> Handover<T> {
    /// A request begins to wait. It calls [`Handover::leave`] when it waits no longer.
    pub(super) fn enter(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
    }

    /// The next connection that a request gives.
    pub(super) async fn next(&self) -> T {
        loop {
            // A notification whose request has left goes to another one.
            self.arrived.notified().await;
            let given = lock(&self.given).pop();
            if let Some(connection) = given {
                return connection;
            }
        }
    }

    /// A request waits no longer. Returns the connections that no other request is left for.
    pub(super) fn leave(&self) -> Vec<T> {
        let mut given = lock(&self.given);
        let others = self.waiting.fetch_sub(1, Ordering::SeqCst) - 1;
        let kept = others.min(given.len());
        given.split_off(kept)
    }

    /// Gives a connection to a request that waits, or returns it when there is none. Takes no lock then.
    pub(super) fn give(&self, connection: T) -> Option<T> {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return Some(connection);
        }
        let mut given = lock(&self.given);
        if given.len() >= self.waiting.load(Ordering::SeqCst) {
            return Some(connection);
        }
        given.push(connection);
        drop(given);
        self.arrived.notify_one();
        None
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn each_connection_goes_to_one_request_that_waits() {
        let handover = Handover::default();
        assert_eq!(handover.give(1), Some(1), "no request waits");
        handover.enter();
        handover.enter();
        assert_eq!(handover.give(1), None);
        assert_eq!(handover.give(2), None);
        assert_eq!(handover.give(3), Some(3), "each has one");
        // A notified request that leaves passes its connection on, or returns it when it is the last.
        let mut first = Box::pin(handover.next());
        assert!((&mut first).now_or_never().is_some());
        drop(first);
        assert!(handover.leave().is_empty(), "another request waits");
        assert_eq!(handover.leave().len(), 1);
        assert_eq!(handover.give(4), Some(4));
    }
}
