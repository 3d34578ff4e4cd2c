//! Additional connections of an agent: opened under load, and retired when no longer needed. The server
//! spreads the streams of an endpoint over all of them. The rules are those of `crates/culvert-tunnel/src/path.rs`.
//!
//! A retired connection takes no new streams and ends with its last one. If it is needed again before, it
//! serves again.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use culvert_base::Entropy;
use culvert_base::sync::lock;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::agent::{Agent, Chore, Done, Drained, Serving, Started, Trouble};
use super::backoff::Backoff;
use super::numbers::Number;
use super::status::AgentError;

/// Maximum number of connections that serve at a time.
const SERVING_MAX: usize = 4;
/// Number of streams per connection above which another is opened.
const STREAMS_EACH: usize = 512;
/// How often to check whether another connection is needed.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Number of consecutive checks that must find every connection congested before another is opened.
const CONGESTED_LOOKS: u32 = 8;
/// A lost connection that lasted for less is replaced after a delay.
const SHORT: Duration = Duration::from_secs(1);
/// How long a connection must be unneeded before it is retired.
const UNNEEDED_FOR: Duration = Duration::from_secs(10);

/// The connections besides the first: additional and replaced ones.
pub(super) struct Others {
    /// Each task returns the number of streams that it cut.
    pub(super) connections: JoinSet<usize>,
    /// Cancelled when the first connection is replaced: these then serve at the old server.
    superseded: CancellationToken,
    looks: tokio::time::Interval,
    congested: u32,
    attempts: Arc<Mutex<Attempts>>,
}

/// The attempts to open another connection. One that fails delays the next.
#[derive(Debug, Default)]
struct Attempts {
    backoff: Backoff,
    not_before: Option<Instant>,
}

impl Attempts {
    fn may_begin(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|at| at <= now)
    }

    fn failed(&mut self, now: Instant, entropy: &dyn Entropy) {
        self.not_before = Some(now + self.backoff.next(entropy));
    }

    fn succeeded(&mut self) {
        *self = Self::default();
    }
}

impl Others {
    pub(super) fn new() -> Self {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            connections: JoinSet::new(),
            superseded: CancellationToken::new(),
            looks,
            congested: 0,
            attempts: Arc::default(),
        }
    }

    /// Waits until the next check.
    pub(super) async fn next_check(&mut self) {
        self.looks.tick().await;
    }

    /// Has another connection of `agent` serve if needed: a retired one, or a new one.
    pub(super) fn open_if_needed(&mut self, agent: &Arc<Agent>, stop: &CancellationToken) {
        let load = agent.load();
        // Includes connections that are being opened.
        let connections = load.connections.max(agent.numbers.serving());
        let is_congested = load.is_congested && load.connections == connections;
        self.congested = if is_congested { self.congested + 1 } else { 0 };
        let is_needed =
            load.streams >= STREAMS_EACH * connections || self.congested >= CONGESTED_LOOKS;
        if !is_needed || connections >= SERVING_MAX {
            return;
        }
        if agent.numbers.recall() {
            self.congested = 0;
            return;
        }
        if !lock(&self.attempts).may_begin(Instant::now()) {
            return;
        }
        let Some(number) = agent.numbers.take() else {
            return;
        };
        self.congested = 0;
        let (superseded, attempts) = (self.superseded.clone(), Arc::clone(&self.attempts));
        let serving = Arc::clone(agent).serve_further(number, superseded, stop.clone(), attempts);
        self.connections.spawn(serving);
    }

    /// Waits for the ends of all connections after a stop. `cut` is the number of streams that the first one cut.
    pub(super) async fn end(self, cut: usize) -> Result<(), AgentError> {
        let more: usize = self.connections.join_all().await.into_iter().sum();
        match cut + more {
            0 => Ok(()),
            count => Err(AgentError::Cut(count)),
        }
    }

    /// Retires the additional connections. They do not serve again.
    pub(super) fn supersede(&mut self) {
        std::mem::take(&mut self.superseded).cancel();
    }
}

/// The load on the connections of an agent that are not retired.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) connections: usize,
    pub(super) streams: usize,
    /// Whether every connection is congested, or held back by losses.
    pub(super) is_congested: bool,
    /// Whether one is held back by losses.
    pub(super) is_held_back: bool,
}

impl Load {
    /// Whether one connection fewer would suffice.
    fn has_one_too_many(self) -> bool {
        let few = |connections: usize| self.streams < STREAMS_EACH / 2 * connections;
        // With losses, few streams need several connections too.
        !self.is_held_back
            && (!self.is_congested && few(self.connections.saturating_sub(1)) || few(1))
    }
}

/// Why an additional connection stopped serving.
enum Left {
    Unneeded,
    /// The agent stops, or connects to another server.
    Over,
    Lost,
}

impl Agent {
    /// Serves with one index from start to end. Returns the number of streams cut at its end.
    async fn serve_further(
        self: Arc<Self>,
        number: Number,
        superseded: CancellationToken,
        stop: CancellationToken,
        attempts: Arc<Mutex<Attempts>>,
    ) -> usize {
        let over = async {
            tokio::select! {
                () = superseded.cancelled() => {}
                () = stop.cancelled() => {}
            }
        };
        tokio::pin!(over);
        // If it fails, a later check tries again if the connection is still needed.
        let mut joined = self.join(&number).await.ok();
        match &joined {
            Some(_) => lock(&attempts).succeeded(),
            None => lock(&attempts).failed(Instant::now(), &*self.entropy),
        }
        let mut backoff = Backoff::default();
        while let Some(started) = joined {
            let began = Instant::now();
            let ended = self
                .serve_until_retired(started, &number, &superseded, &stop)
                .await;
            if let Some(cut) = ended {
                return cut;
            }
            let lasted = began.elapsed();
            backoff.lasted(lasted);
            // The server may not know yet that the connection is lost, and would open streams on it. A server that
            // accepts connections and ends them is left in peace for longer each time.
            let pause = match lasted < SHORT {
                true => backoff.next(&*self.entropy),
                false => Duration::ZERO,
            };
            joined = tokio::select! {
                joined = self.join_again(&number, pause) => joined,
                () = &mut over => return 0,
            };
        }
        0
    }

    /// Opens an additional connection of the session.
    async fn join(self: &Arc<Self>, number: &Number) -> Result<Started, Trouble> {
        let started = self.begin().await?;
        match self.introduce(&started.session, number.value(), true).await {
            Ok(()) => Ok(started),
            Err(trouble) => {
                started.session.hang_up();
                Err(trouble)
            }
        }
    }

    /// Replaces a lost connection at the server, until the server would notice the loss itself.
    async fn join_again(self: &Arc<Self>, number: &Number, pause: Duration) -> Option<Started> {
        tokio::time::sleep(pause).await;
        let beats = self.settings.heartbeat;
        let deadline = Instant::now() + beats.interval + beats.tolerance;
        let mut backoff = Backoff::default();
        loop {
            match tokio::time::timeout_at(deadline, self.join(number)).await {
                Ok(Ok(started)) => return Some(started),
                Ok(Err(Trouble::Lost(_) | Trouble::Mistaken(_))) => {}
                Ok(Err(Trouble::Refused(..))) | Err(_) => return None,
            }
            tokio::time::sleep(backoff.next(&*self.entropy)).await;
        }
    }

    /// Serves one connection to its end. Returns the number of streams cut then, or `None` if it was lost.
    async fn serve_until_retired(
        self: &Arc<Self>,
        started: Started,
        number: &Number,
        superseded: &CancellationToken,
        stop: &CancellationToken,
    ) -> Option<usize> {
        let mut it = Serving::new(started);
        loop {
            let recalled = match self.serve_until_unneeded(&mut it, superseded, stop).await {
                Left::Lost => {
                    it.session.hang_up();
                    return None;
                }
                Left::Over => {
                    number.leave();
                    None
                }
                Left::Unneeded => Some(number.retire()),
            };
            let recalled = async {
                match recalled {
                    Some(recalled) => recalled.notified().await,
                    None => std::future::pending().await,
                }
            };
            match self.retire(&mut it, recalled, stop).await {
                Drained::Ended(cut) => {
                    it.close().await;
                    return Some(cut);
                }
                Drained::Recalled => {}
            }
            it.draining = CancellationToken::new();
            // If the server refuses, the next check retires it again.
            if self.bind_all(&it.session, true).await.is_ok() {
                it.is_retired.store(false, Ordering::Relaxed);
            }
        }
    }

    async fn serve_until_unneeded(
        self: &Arc<Self>,
        it: &mut Serving,
        superseded: &CancellationToken,
        stop: &CancellationToken,
    ) -> Left {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        let mut needed_at = Instant::now();
        loop {
            tokio::select! {
                accepted = it.session.accept() => match accepted {
                    Some(stream) => {
                        it.streams.spawn(Arc::clone(self).take(stream, it.draining.clone()));
                    }
                    None => return Left::Lost,
                },
                Some(done) = it.streams.join_next(), if !it.streams.is_empty() => match done {
                    Ok(Done::Stop) => stop.cancel(),
                    Ok(Done::Restart) => self.restarts.notify_one(),
                    // The first connection handles stopped endpoints.
                    Ok(Done::Taken(_) | Done::Nothing) | Err(_) => {}
                },
                Some(chore) = it.chores.join_next() => {
                    if matches!(chore, Ok(Chore::Silent)) && it.session.has_capacity() {
                        return Left::Lost;
                    }
                }
                _ = looks.tick() => {
                    if it.is_retired.load(Ordering::Relaxed) {
                        return Left::Unneeded;
                    }
                    if !self.load().has_one_too_many() {
                        needed_at = Instant::now();
                    } else if needed_at.elapsed() > UNNEEDED_FOR {
                        return Left::Unneeded;
                    }
                }
                () = superseded.cancelled() => return Left::Over,
                () = stop.cancelled() => return Left::Over,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use culvert_base::SeededEntropy;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failed_attempts_are_repeated_after_longer_and_longer_delays() {
        let entropy = SeededEntropy::new(1);
        let mut attempts = Attempts::default();
        let mut n_attempts = 0;
        let began = Instant::now();
        // As a server that refuses every further connection for ten minutes.
        while began.elapsed() < Duration::from_secs(600) {
            if attempts.may_begin(Instant::now()) {
                n_attempts += 1;
                attempts.failed(Instant::now(), &entropy);
            }
            tokio::time::advance(LOOK_EVERY).await;
        }
        assert!((20..50).contains(&n_attempts), "{n_attempts} of 2400 looks");
        assert!(!attempts.may_begin(Instant::now()));
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(attempts.may_begin(Instant::now()), "the delay has a bound");
        attempts.failed(Instant::now(), &entropy);
        attempts.succeeded();
        assert!(attempts.may_begin(Instant::now()));
    }
}
