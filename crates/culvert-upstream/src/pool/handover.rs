//! Upstream connections that go from one request straight to another that waits for one.
//!
//! An agent carries a limited number of streams. When all are in use, a request that ends gives its connection to
//! one that waits, instead of closing it so that another can be opened: that would cost both ends a stream for each
//! request.

use std::pin::pin;
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
            // Registered before the look, so that no connection comes in between. A notification whose request
            // has left goes to another one.
            let mut arrived = pin!(self.arrived.notified());
            arrived.as_mut().enable();
            let given = lock(&self.given).pop();
            if let Some(connection) = given {
                return connection;
            }
            arrived.await;
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
    fn a_released_connection_goes_to_one_waiting_request() {
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

    /// Every order of the steps of two requests that wait and of what others give: whatever was given reaches a
    /// request that waits, and nothing stays behind.
    #[test]
    fn no_interleaving_loses_a_connection() {
        const STEPS: u32 = 6;
        // A request begins to wait, looks, or leaves, for each of the two; a connection is given.
        const KINDS: usize = 7;
        for order in 0..KINDS.pow(STEPS) {
            let handover = Handover::default();
            let mut requests: [Option<_>; 2] = [None, None];
            let mut inside = 0;
            let mut connections = 0;
            let mut digits = order;
            for _ in 0..STEPS {
                let step = digits % KINDS;
                digits /= KINDS;
                let at = step % 2;
                match step / 2 {
                    0 if requests[at].is_none() => {
                        handover.enter();
                        inside += 1;
                        requests[at] = Some(Box::pin(handover.next()));
                    }
                    1 => {
                        let taken = requests[at].as_mut().and_then(|next| next.now_or_never());
                        if taken.is_some() {
                            requests[at] = None;
                            connections -= 1;
                            inside -= 1;
                            connections -= handover.leave().len();
                        }
                    }
                    2 if requests[at].take().is_some() => {
                        inside -= 1;
                        connections -= handover.leave().len();
                    }
                    3 => connections += usize::from(handover.give(()).is_none()),
                    _ => {}
                }
                assert!(connections <= inside, "{order}");
                assert_eq!(lock(&handover.given).len(), connections, "{order}");
            }
            // Requests that wait and look again get all there is.
            for next in requests.iter_mut().flatten() {
                connections -= usize::from(next.now_or_never().is_some());
            }
            assert_eq!(connections, 0, "{order}");
        }
    }
}
