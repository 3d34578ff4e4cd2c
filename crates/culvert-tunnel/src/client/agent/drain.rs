//! Retires connections: they take no new streams, and end with their last one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use culvert_mux::ErrorCode;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Agent, Chore, Done, Started};
use crate::client::numbers::Number;
use crate::client::session;
use crate::driver::Session;
use crate::wire::{Outcome, StreamType, UnbindRequest};

/// How long a replaced connection keeps serving beside the new one. Other nodes update their tables of
/// endpoints twice a second.
const OVERLAP: Duration = Duration::from_secs(2);
/// How long a request may still arrive through other nodes after its endpoint is removed.
const STRAGGLERS: Duration = Duration::from_secs(1);
/// A connection with its streams.
pub(in crate::client) struct Serving {
    pub(in crate::client) session: Session,
    pub(in crate::client) chores: JoinSet<Chore>,
    pub(in crate::client) streams: JoinSet<Done>,
    /// Cancelled when idle connections to services must end.
    pub(in crate::client) draining: CancellationToken,
    pub(in crate::client) is_retired: Arc<AtomicBool>,
}

impl Serving {
    pub(in crate::client) fn new(started: Started) -> Self {
        Self {
            session: started.session,
            chores: started.chores,
            streams: JoinSet::new(),
            draining: CancellationToken::new(),
            is_retired: started.is_retired,
        }
    }

    /// Sends GOAWAY and waits until it is sent.
    pub(in crate::client) async fn close(mut self) {
        self.session.close(ErrorCode::NONE, "");
        // The driver sends the GOAWAY.
        while let Some(chore) = self.chores.join_next().await {
            if matches!(chore, Ok(Chore::Ended)) {
                break;
            }
        }
    }
}

/// How a retired connection went on.
pub(in crate::client) enum Drained {
    /// It has ended, and cut this number of streams.
    Ended(usize),
    /// It is needed again.
    Recalled,
}

impl Agent {
    /// Serves on a replaced connection until all nodes know the new one, and until its last stream has ended. Returns
    /// the number of streams that were cut.
    pub(super) async fn leave(
        self: Arc<Self>,
        mut old: Serving,
        number: Number,
        stop: CancellationToken,
    ) -> usize {
        number.leave();
        let drained = self.retire(&mut old, std::future::pending(), &stop).await;
        old.close().await;
        match drained {
            Drained::Ended(cut) => cut,
            Drained::Recalled => 0,
        }
    }

    /// Retires a connection once all nodes know the others, and serves its streams to their end, or until it is
    /// `recalled`. Only after `stop` is its time limited.
    pub(in crate::client) async fn retire(
        self: &Arc<Self>,
        it: &mut Serving,
        recalled: impl Future<Output = ()>,
        stop: &CancellationToken,
    ) -> Drained {
        let overlap = async {
            tokio::select! {
                () = tokio::time::sleep(OVERLAP) => {}
                () = stop.cancelled() => {}
            }
        };
        self.drain(it, overlap, recalled, stop).await
    }

    /// Removes the endpoints after `overlap` and waits for open connections to end, or until `recalled`. After `stop`
    /// it waits no longer than the drain time, and returns the number still open then. Cancels `stop` when the server
    /// sends the stop command.
    pub(super) async fn drain(
        self: &Arc<Self>,
        it: &mut Serving,
        overlap: impl Future<Output = ()>,
        recalled: impl Future<Output = ()>,
        stop: &CancellationToken,
    ) -> Drained {
        it.is_retired.store(true, Ordering::Relaxed);
        let ids: Vec<String> = self
            .slots
            .borrow()
            .iter()
            .filter(|slot| !slot.is_gone)
            .filter_map(|slot| slot.bound.as_ref().map(|bound| bound.id.clone()))
            .collect();
        let (session, draining) = (it.session.clone(), it.draining.clone());
        let unbinding = async {
            overlap.await;
            for id in ids {
                let request = UnbindRequest { id };
                // If the server is gone, the remaining endpoints need no Unbind.
                let answer: io::Result<Outcome> =
                    session::call(&session, StreamType::UNBIND, &request).await;
                if answer.is_err() {
                    break;
                }
            }
            // Only now: idle connections end, and no new stream takes their place. A request that came before
            // may still be in transit through another node.
            if !draining.is_cancelled() {
                tokio::time::sleep(STRAGGLERS).await;
            }
            draining.cancel();
        };
        let too_late = async {
            stop.cancelled().await;
            tokio::time::sleep(self.settings.drain_time).await;
        };
        tokio::pin!(unbinding, too_late, recalled);
        let mut is_unbound = false;
        while !is_unbound || !it.streams.is_empty() {
            tokio::select! {
                () = &mut unbinding, if !is_unbound => is_unbound = true,
                () = &mut recalled, if is_unbound => return Drained::Recalled,
                accepted = it.session.accept() => match accepted {
                    Some(stream) => {
                        it.streams.spawn(Arc::clone(self).take(stream, it.draining.clone()));
                    }
                    None => break,
                },
                Some(done) = it.streams.join_next(), if !it.streams.is_empty() => match done {
                    Ok(Done::Stop) => stop.cancel(),
                    Ok(Done::Restart) => self.restarts.notify_one(),
                    Ok(Done::Taken(_) | Done::Nothing) | Err(_) => {}
                },
                Some(chore) = it.chores.join_next() => {
                    if matches!(chore, Ok(Chore::Silent)) && it.session.has_capacity() {
                        it.session.hang_up();
                    }
                }
                () = &mut too_late => break,
            }
        }
        Drained::Ended(it.streams.len())
    }
}
