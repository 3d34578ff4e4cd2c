//! The time by which stored data is too old to be retained.
//!
//! Deleted data cannot be restored, so a clock that was set forward deletes none for a day: until then an operator can set
//! it back.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::sync::lock;
use crate::{Clock, Timestamp};

/// How long the time before a step decides.
const PATIENCE: Duration = Duration::from_secs(86_400);

/// Time that continues at its own pace when the clock is set forward.
#[derive(Debug, Default)]
pub struct RetentionClock(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    times_set: u64,
    /// The last reading, and when it was.
    last: Option<(Timestamp, Instant)>,
    /// How far the clock was set forward, and when.
    step: Option<(Duration, Instant)>,
}

impl RetentionClock {
    /// The time now, at `instant` of the monotonic clock.
    pub fn now(&self, clock: &dyn Clock, instant: Instant) -> Timestamp {
        let (now, times_set) = (clock.now(), clock.times_set());
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
    use super::*;
    use crate::ManualClock;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_clock_that_is_set_forward_makes_nothing_old_for_a_day() {
        let (start, began) = (Timestamp::from_unix_seconds(1_800_000_000), Instant::now());
        let clock = ManualClock::at(start);
        let retention = RetentionClock::default();
        assert_eq!(retention.now(&clock, began), start);
        clock.set(start.plus(1000 * HOUR));
        assert_eq!(retention.now(&clock, began), start);
        clock.advance(HOUR);
        assert_eq!(retention.now(&clock, began + HOUR), start.plus(HOUR));
        clock.advance(PATIENCE);
        let later = began + HOUR + PATIENCE;
        assert_eq!(retention.now(&clock, later), clock.now());
    }

    #[test]
    fn a_clock_that_is_set_back_counts_immediately() {
        let (start, began) = (Timestamp::from_unix_seconds(1_800_000_000), Instant::now());
        let clock = ManualClock::at(start);
        let retention = RetentionClock::default();
        retention.now(&clock, began);
        clock.set(start.plus(1000 * HOUR));
        retention.now(&clock, began);
        // Back to where it was.
        clock.set(start);
        assert_eq!(retention.now(&clock, began), start);
        clock.set(start.minus(HOUR));
        assert_eq!(retention.now(&clock, began), start.minus(HOUR));
    }
}
