//! Additional connections of an agent: opened under load, and closed when no longer needed. The server
//! spreads the streams of an endpoint over all of them.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::agent::{Agent, Chore, Done, Replaced, Started};

/// Indexes of additional connections. Lower ones belong to the first connection and its replacement.
const NUMBERS: RangeInclusive<u32> = 2..=4;
/// Number of streams per connection above which another is opened.
const STREAMS_EACH: usize = 512;
/// How often to check whether another connection is needed.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Number of consecutive checks that must find every connection congested before another is opened.
const CONGESTED_LOOKS: u32 = 8;
/// How long a connection must be unneeded before it is closed.
const UNNEEDED_FOR: Duration = Duration::from_secs(10);

/// The connections besides the first: additional and replaced ones.
pub(super) struct Others {
    /// Each task returns the number of streams that it cut.
    pub(super) connections: JoinSet<usize>,
    numbers: Arc<Mutex<BTreeSet<u32>>>,
    /// Cancelled when the first connection is replaced: these then serve at the old server.
    superseded: CancellationToken,
    looks: tokio::time::Interval,
    congested: u32,
}

/// The index of a connection, which is released when dropped.
struct Number {
    number: u32,
    all: Arc<Mutex<BTreeSet<u32>>>,
}

impl Drop for Number {
    fn drop(&mut self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&self.number);
    }
}

impl Others {
    pub(super) fn new() -> Self {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            connections: JoinSet::new(),
            numbers: Arc::default(),
            superseded: CancellationToken::new(),
            looks,
            congested: 0,
        }
    }

    /// Waits until the next check.
    pub(super) async fn look(&mut self) {
        self.looks.tick().await;
    }

    /// Opens another connection of `agent` if needed.
    pub(super) fn open_if_needed(&mut self, agent: &Arc<Agent>, stop: &CancellationToken) {
        let load = agent.load();
        // Includes connections that are being opened and one that is about to end.
        let connections = load.connections.max(1 + self.numbers().len());
        let is_congested = load.is_congested && load.connections == connections;
        self.congested = if is_congested { self.congested + 1 } else { 0 };
        let is_needed =
            load.streams >= STREAMS_EACH * connections || self.congested >= CONGESTED_LOOKS;
        if !is_needed {
            return;
        }
        let Some(number) = self.number() else {
            return;
        };
        self.congested = 0;
        let serving =
            Arc::clone(agent).serve_further(number, self.superseded.clone(), stop.clone());
        self.connections.spawn(serving);
    }

    /// Closes the additional connections in order.
    pub(super) fn supersede(&mut self) {
        std::mem::take(&mut self.superseded).cancel();
    }

    fn numbers(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> Option<Number> {
        let mut all = self.numbers();
        let number = NUMBERS.into_iter().find(|number| !all.contains(number))?;
        all.insert(number);
        Some(Number {
            number,
            all: Arc::clone(&self.numbers),
        })
    }
}

/// The load on the connections of an agent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) connections: usize,
    pub(super) streams: usize,
    /// Whether every connection is congested.
    pub(super) is_congested: bool,
}

impl Load {
    /// Whether one connection fewer would suffice.
    fn has_one_too_many(self) -> bool {
        !self.is_congested && self.streams < STREAMS_EACH / 2 * self.connections.saturating_sub(1)
            || self.streams < STREAMS_EACH / 2
    }
}

impl Agent {
    /// Serves one additional connection from start to end. Returns the number of streams cut at its end.
    async fn serve_further(
        self: Arc<Self>,
        number: Number,
        superseded: CancellationToken,
        stop: CancellationToken,
    ) -> usize {
        // A later check tries again if the connection is still needed.
        let Ok(Started {
            session,
            mut chores,
        }) = self.begin().await
        else {
            return 0;
        };
        if self.introduce(&session, Some(number.number)).await.is_err() {
            session.hang_up();
            return 0;
        }
        let (mut streams, draining) = (JoinSet::new(), CancellationToken::new());
        let mut looks = tokio::time::interval(LOOK_EVERY);
        let mut needed_at = Instant::now();
        loop {
            tokio::select! {
                accepted = session.accept() => match accepted {
                    Some(stream) => {
                        streams.spawn(Arc::clone(&self).take(stream, draining.clone()));
                    }
                    // The first connection resumes the session; this one is reopened if needed.
                    None => return 0,
                },
                Some(done) = streams.join_next(), if !streams.is_empty() => match done {
                    Ok(Done::Stop) => stop.cancel(),
                    Ok(Done::Restart) => break,
                    // The first connection handles stopped endpoints.
                    Ok(Done::Taken(_) | Done::Nothing) | Err(_) => {}
                },
                Some(chore) = chores.join_next() => if matches!(chore, Ok(Chore::Silent)) && session.has_capacity() {
                    session.hang_up();
                    return 0;
                },
                _ = looks.tick() => {
                    if !self.load().has_one_too_many() {
                        needed_at = Instant::now();
                    } else if needed_at.elapsed() > UNNEEDED_FOR {
                        break;
                    }
                }
                () = superseded.cancelled() => break,
                () = stop.cancelled() => break,
            }
        }
        let old = Replaced {
            session,
            chores,
            streams,
            draining,
        };
        self.leave(old, stop).await
    }
}
