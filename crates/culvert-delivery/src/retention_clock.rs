//! The time by which events are too old to be retained.
//!
//! Deleted events cannot be restored, so a clock that was set forward deletes none for a day: until then an operator
//! can set it back.

use std::sync::Mutex;
use std::time::Duration;

use culvert_base::sync::lock;
use culvert_base::{Clock, Timestamp};
use tokio::time::Instant;

/// How long the time before a step decides.
const PATIENCE: Duration = Duration::from_secs(86_400);

/// Time that continues at its own pace when the clock is set forward.
#[derive(Debug, Default)]
pub(crate) struct RetentionClock(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    times_set: u64,
    /// The last reading, and when it was.
    last: Option<(Timestamp, Instant)>,
    /// How far the clock was set forward, and when.
    step: Option<(Duration, Instant)>,
}

impl RetentionClock {
    /// The time now.
    pub(crate) fn now(&self, clock: &dyn Clock) -> Timestamp {
        let (now, times_set, instant) = (clock.now(), clock.times_set(), Instant::now());
        let mut state = lock(&self.0);
        if let Some((before, at)) = state.last
            && times_set != state.times_set
        {
            let expected = before.plus(instant.duration_since(at));
            let pending = state.step.map_or(Duration::ZERO, |(ahead, _)| ahead);
            let ahead = match now.since(expected) {
                // Set back, which ends a step forward as far as it goes.
                Duration::ZERO => pending.saturating_sub(expected.since(now)),
                ahead => pending + ahead,
            };
            state.step = Some((ahead, instant));
        }
        state.times_set = times_set;
        state.last = Some((now, instant));
        match state.step {
            Some((ahead, at)) if instant.duration_since(at) < PATIENCE => now.minus(ahead),
            _ => {
                state.step = None;
                now
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use culvert_base::ManualClock;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_forward_makes_nothing_old_for_a_day() {
        let start = Timestamp::from_unix_seconds(1_800_000_000);
        let clock = ManualClock::at(start);
        let retention = RetentionClock::default();
        assert_eq!(retention.now(&clock), start);
        clock.set(start.plus(1000 * HOUR));
        assert_eq!(retention.now(&clock), start);
        tokio::time::advance(HOUR).await;
        clock.advance(HOUR);
        assert_eq!(retention.now(&clock), start.plus(HOUR));
        tokio::time::advance(PATIENCE).await;
        clock.advance(PATIENCE);
        assert_eq!(retention.now(&clock), clock.now());
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_set_back_counts_immediately() {
        let start = Timestamp::from_unix_seconds(1_800_000_000);
        let clock = ManualClock::at(start);
        let retention = RetentionClock::default();
        retention.now(&clock);
        clock.set(start.plus(1000 * HOUR));
        retention.now(&clock);
        // Back to where it was.
        clock.set(start);
        assert_eq!(retention.now(&clock), start);
        clock.set(start.minus(HOUR));
        assert_eq!(retention.now(&clock), start.minus(HOUR));
    }
}
