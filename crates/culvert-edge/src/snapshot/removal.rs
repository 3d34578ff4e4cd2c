//! The removal of an endpoint, which ends its open relays.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};

use futures_util::FutureExt;
use futures_util::future::{FusedFuture, pending, select, select_all};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Whether an endpoint was removed. An update of the endpoint keeps it.
#[derive(Debug, Default)]
pub(crate) struct Removal {
    is_removed: AtomicBool,
    waiting: Notify,
}

impl Removal {
    /// The endpoint is removed: wakes the relays that wait for it.
    pub(super) fn remove(&self) {
        self.is_removed.store(true, Ordering::Release);
        self.waiting.notify_waiters();
    }

    /// Whether the endpoint was removed.
    pub(crate) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    fn removed(&self) -> Notified<'_> {
        self.waiting.notified()
    }
}

/// Completes with the removal of one of several endpoints, if that happens after this call. It allocates only for the
/// second and further ones.
pub(crate) fn one_of<'x>(
    mut all: impl Iterator<Item = &'x Removal>,
) -> impl FusedFuture<Output = ()> + 'x {
    let first = all.next().map(Removal::removed);
    let others: Vec<_> = all.map(|one| Box::pin(one.removed())).collect();
    let removed = async move {
        let first = async {
            match first {
                Some(first) => first.await,
                None => pending().await,
            }
        };
        let others = async {
            match others.is_empty() {
                true => pending().await,
                false => drop(select_all(others).await),
            }
        };
        select(pin!(first), pin!(others)).await;
    };
    removed.fuse()
}

/// Registers the waker of a task for removals. It takes locks only for a new waker, and not with each poll of the task.
#[derive(Debug)]
pub(crate) struct RemovalWatch<'p, F> {
    removed: Pin<&'p mut F>,
    waker: Option<Waker>,
}

impl<'p, F: FusedFuture<Output = ()>> RemovalWatch<'p, F> {
    /// A watch of what [`one_of`] returned.
    pub(crate) fn new(removed: Pin<&'p mut F>) -> Self {
        Self {
            removed,
            waker: None,
        }
    }

    /// Wakes `waker` with a removal.
    pub(crate) fn register(&mut self, waker: &Waker) {
        let is_known = |known: &Waker| known.will_wake(waker);
        if self.waker.as_ref().is_some_and(is_known) {
            return;
        }
        self.waker = Some(waker.clone());
        // If it is ready, the task sees the flag.
        let _removed = self.removed.as_mut().poll(&mut Context::from_waker(waker));
    }
}
