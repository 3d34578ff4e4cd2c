//! Further connections of one agent: opened when those that there are carry much, and given up when they
//! are not needed any more. The server shares the streams of an endpoint among all of them.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::agent::{Agent, Chore, Done, Replaced, Started};

/// Numbers of further connections, each of which is there once. Those below are of the first connection
/// and of its successor.
const NUMBERS: RangeInclusive<u32> = 2..=4;
/// Streams of each, beyond which there is another.
const STREAMS_EACH: usize = 512;
/// How often it is looked whether another is needed.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Looks in turn that find every connection congested before there is another.
const CONGESTED_LOOKS: u32 = 8;
/// A connection that was not needed for so long is given up.
const UNNEEDED_FOR: Duration = Duration::from_secs(10);

/// The connections beside the first: further ones, and those that were replaced.
pub(super) struct Others {
    /// Each ends with the number of streams that it cut.
    pub(super) connections: JoinSet<usize>,
    numbers: Arc<Mutex<BTreeSet<u32>>>,
    /// Cancelled when the first has moved: these serve where it served before.
    superseded: CancellationToken,
    looks: tokio::time::Interval,
    congested: u32,
}

/// The number of a connection, which is free again with it.
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

    /// The next moment to look whether another is needed.
    pub(super) async fn look(&mut self) {
        self.looks.tick().await;
    }

    /// Opens another connection of `agent` if it needs one.
    pub(super) fn open_if_needed(&mut self, agent: &Arc<Agent>, stop: &CancellationToken) {
        let load = agent.load();
        // Those that are on their way count, and so does one that is about to end.
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

    /// Ends the further ones in order.
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

/// What the connections of an agent carry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) connections: usize,
    pub(super) streams: usize,
    /// Whether much waits to be sent on each.
    pub(super) is_congested: bool,
}

impl Load {
    /// Whether one connection fewer would do.
    fn has_one_too_many(self) -> bool {
        !self.is_congested && self.streams < STREAMS_EACH / 2 * self.connections.saturating_sub(1)
            || self.streams < STREAMS_EACH / 2
    }
}

impl Agent {
    /// One further connection, from its first byte to its last. How many streams were cut at its end.
    async fn serve_further(
        self: Arc<Self>,
        number: Number,
        superseded: CancellationToken,
        stop: CancellationToken,
    ) -> usize {
        // One that fails is tried again at a later look, if it is needed still.
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
                    // The first connection comes back for the session; this one if it is needed.
                    None => return 0,
                },
                Some(done) = streams.join_next(), if !streams.is_empty() => match done {
                    Ok(Done::Stop) => stop.cancel(),
                    Ok(Done::Restart) => break,
                    // The first connection hears of an endpoint that was taken away.
                    Ok(Done::Taken(_) | Done::Nothing) | Err(_) => {}
                },
                Some(chore) = chores.join_next() => if matches!(chore, Ok(Chore::Silent)) && session.has_room() {
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
