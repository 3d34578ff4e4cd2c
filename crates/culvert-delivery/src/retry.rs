//! The retry schedule, and when to stop (contract: destinations 1.3).
//!
//! Pure: a decision is computed from attempt, failure, age and a random number. The worker has the clock and the queue.

use std::time::Duration;

use culvert_base::{RetryAfter, Timestamp};
use culvert_target::failure::FailureClass;

/// Delays and ages. The defaults are the contract's.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The first delay is between zero and this.
    pub base: Duration,
    /// Maximum delay for failures that may resolve without action.
    pub cap: Duration,
    /// Maximum delay for failures that need action.
    pub slow_cap: Duration,
    /// Maximum `Retry-After` that is followed.
    pub retry_after_max: Duration,
    /// Age after which traffic events are dead-lettered.
    pub give_up_traffic: Duration,
    /// Age after which audit events are dead-lettered. Their rows stay in the audit log.
    pub give_up_audit: Duration,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            base: Duration::from_millis(500),
            cap: Duration::from_secs(60),
            slow_cap: Duration::from_secs(600),
            retry_after_max: Duration::from_secs(3600),
            give_up_traffic: Duration::from_secs(3600),
            give_up_audit: Duration::from_secs(72 * 3600),
        }
    }
}

/// The decision about a batch that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Send it again at this time.
    At(Timestamp),
    /// Dead-letter it, because it is too old.
    GiveUp,
}

/// One failed attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failed {
    /// How often the batch has been sent, including this attempt; starts at 1.
    pub(crate) attempt: u32,
    /// The class of the failure.
    pub(crate) class: FailureClass,
    /// The delay that the destination requested, if any.
    pub(crate) retry_after: Option<RetryAfter>,
    /// When the batch was created.
    pub(crate) first_at: Timestamp,
    /// Give-up age of its class.
    pub(crate) give_up_after: Duration,
}

impl Schedule {
    /// Decides about a failed attempt. `random` is any 64 random bits.
    pub(crate) fn next(&self, failed: Failed, now: Timestamp, random: u64) -> Next {
        let give_up_at = failed.first_at.plus(failed.give_up_after);
        if now >= give_up_at {
            return Next::GiveUp;
        }
        let own = self.jittered(failed.attempt, failed.class, random);
        let delay = RetryAfter::wait(failed.retry_after, own, self.retry_after_max);
        // Not later than the give-up age: the last attempt is at exactly that time.
        Next::At(now.plus(delay).min(give_up_at))
    }

    /// The longest wait between two attempts.
    pub(crate) fn longest(&self) -> Duration {
        self.cap.max(self.slow_cap).max(self.retry_after_max)
    }

    /// Full jitter: between zero and the ceiling of the step.
    fn jittered(&self, attempt: u32, class: FailureClass, random: u64) -> Duration {
        let ceiling = self.ceiling(attempt, class);
        let nanos = u64::try_from(ceiling.as_nanos()).unwrap_or(u64::MAX);
        // Multiply and shift: sufficiently uniform at these sizes, and without a division by a ceiling of zero.
        let scaled = (u128::from(random) * u128::from(nanos)) >> 64;
        Duration::from_nanos(u64::try_from(scaled).unwrap_or(nanos))
    }

    /// The maximum delay after this many attempts.
    fn ceiling(&self, attempt: u32, class: FailureClass) -> Duration {
        let cap = if class.needs_a_hand() {
            self.slow_cap
        } else {
            self.cap
        };
        let doublings = attempt.saturating_sub(1).min(30);
        self.base.saturating_mul(1 << doublings).min(cap)
    }
}

/// After this many consecutive failures, a destination gets one probe batch per step.
pub(crate) const CIRCUIT_FAILURES: u32 = 20;

/// The consecutive failures of a destination, and the resulting limits on sends.
///
/// ```text
/// closed ──20 failures in a row──▶ open until the step's end ──probe fails──▶ open again
///   ▲                                        └──probe passes──▶ ramping: 1, 2, 4 … batches a second
///   └──────────────────── 64 batches a second reached ◀────────────────┘
/// ```
#[derive(Clone, Debug, Default)]
pub(crate) struct Circuit {
    failures: u32,
    open_until: Option<Timestamp>,
    ramp: Option<Ramp>,
}

#[derive(Clone, Copy, Debug)]
struct Ramp {
    second_began: Timestamp,
    allowed: u32,
    sent: u32,
}

const RAMP_DONE: u32 = 64;

impl Circuit {
    /// Whether only probes are sent.
    pub(crate) fn is_open(&self) -> bool {
        self.failures >= CIRCUIT_FAILURES
    }

    /// The time before which nothing may be sent; `None` if a send is allowed now.
    pub(crate) fn paused_until(&mut self, now: Timestamp) -> Option<Timestamp> {
        if let Some(until) = self.open_until {
            if now < until {
                return Some(until);
            }
            self.open_until = None;
        }
        let ramp = self.ramp.as_mut()?;
        let second = Duration::from_secs(1);
        if now.since(ramp.second_began) >= second {
            ramp.allowed = ramp.allowed.saturating_mul(2);
            ramp.second_began = now;
            ramp.sent = 0;
        }
        if ramp.allowed >= RAMP_DONE {
            self.ramp = None;
            return None;
        }
        (ramp.sent >= ramp.allowed).then(|| ramp.second_began.plus(second))
    }

    /// Notes that a batch was accepted.
    pub(crate) fn succeeded(&mut self, now: Timestamp) {
        if self.is_open() {
            self.ramp = Some(Ramp {
                second_began: now,
                allowed: 1,
                sent: 0,
            });
        }
        self.failures = 0;
        self.open_until = None;
        if let Some(ramp) = &mut self.ramp {
            ramp.sent = ramp.sent.saturating_add(1);
        }
    }

    /// Notes that a batch failed and will be sent again at `next`.
    pub(crate) fn failed(&mut self, next: Timestamp) {
        self.failures = self.failures.saturating_add(1);
        self.ramp = None;
        if self.is_open() {
            self.open_until = Some(next);
        }
    }

    /// Resets the circuit after an edit of the destination, to which old failures do not apply.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Limits retries to a fifth of all sends of the process while many destinations fail, so that
/// failing destinations do not use up the sockets of the others.
#[derive(Clone, Debug)]
pub(crate) struct RetryBudget {
    /// Hundredths of a retry.
    tokens: u32,
    refilled_at: Timestamp,
}

const BUDGET_FULL: u32 = 10_000;
/// Destinations that may fail at the same time without a budget.
const BUDGET_FREE_DESTINATIONS: usize = 10;

impl RetryBudget {
    /// A full budget.
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            tokens: BUDGET_FULL,
            refilled_at: now,
        }
    }

    /// Notes a first send: four of them earn one retry.
    pub(crate) fn sent(&mut self) {
        self.tokens = self.tokens.saturating_add(25).min(BUDGET_FULL);
    }

    /// Whether another retry may be sent. One per second is always allowed.
    pub(crate) fn take(&mut self, failing_destinations: usize, now: Timestamp) -> bool {
        if failing_destinations <= BUDGET_FREE_DESTINATIONS {
            return true;
        }
        // The clock may have been set back.
        self.refilled_at = self.refilled_at.min(now);
        let seconds = now.since(self.refilled_at).as_secs();
        if seconds > 0 {
            let gained = u32::try_from(seconds)
                .unwrap_or(u32::MAX)
                .saturating_mul(100);
            self.tokens = self.tokens.saturating_add(gained).min(BUDGET_FULL);
            self.refilled_at = now;
        }
        match self.tokens.checked_sub(100) {
            Some(left) => {
                self.tokens = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_seconds(1_800_000_000 + seconds)
    }

    fn failed(
        attempt: u32,
        class: FailureClass,
        age: i64,
        after: Option<u64>,
    ) -> (Failed, Timestamp) {
        let failed = Failed {
            attempt,
            class,
            retry_after: after.map(|asked| RetryAfter::new(Duration::from_secs(asked))),
            first_at: at(0),
            give_up_after: Duration::from_secs(3600),
        };
        (failed, at(age))
    }

    #[test]
    fn retry_delays_follow_the_documented_table() {
        use FailureClass::*;
        // attempt, class, age, Retry-After → maximum delay in milliseconds, or `None` to give up
        type Row = (u32, FailureClass, i64, Option<u64>, Option<u64>);
        let rows: &[Row] = &[
            (1, Retryable, 1, None, Some(500)),
            (2, Retryable, 1, None, Some(1_000)),
            (3, Unknown, 1, None, Some(2_000)),
            (7, Retryable, 1, None, Some(32_000)),
            (8, Retryable, 1, None, Some(60_000)),
            (u32::MAX, Retryable, 1, None, Some(60_000)),
            (1, Auth, 1, None, Some(500)),
            (8, Auth, 1, None, Some(64_000)),
            (11, Config, 1, None, Some(512_000)),
            (12, Config, 1, None, Some(600_000)),
            (40, Gone, 1, None, Some(600_000)),
            (1, Retryable, 1, Some(120), Some(120_000)),
            // A wait that is asked for only lengthens the own one.
            (1, Retryable, 1, Some(0), Some(500)),
            (8, Retryable, 1, Some(0), Some(60_000)),
            (8, Auth, 1, Some(30), Some(64_000)),
            (1, Retryable, 0, Some(86_400), Some(3_600_000)),
            // The last attempt is at exactly the give-up age.
            (9, Retryable, 3590, None, Some(10_000)),
            (9, Retryable, 3600, None, None),
            (9, Retryable, 9999, Some(1), None),
        ];
        let schedule = Schedule::default();
        for (attempt, class, age, after, expected) in rows {
            let (failure, now) = failed(*attempt, *class, *age, *after);
            let longest = match schedule.next(failure, now, u64::MAX) {
                // With full jitter the delay is just below its ceiling.
                Next::At(next) => Some(next.since(now).as_nanos().div_ceil(1_000_000)),
                Next::GiveUp => None,
            };
            assert_eq!(
                longest,
                expected.map(u128::from),
                "{attempt} {class:?} {age} {after:?}"
            );
            if after.is_none() && expected.is_some() {
                assert_eq!(
                    schedule.next(failure, now, 0),
                    Next::At(now),
                    "no lower bound"
                );
            }
        }
    }

    #[test]
    fn after_twenty_failures_one_probe_per_step_is_sent_then_a_ramp() {
        let mut circuit = Circuit::default();
        for _ in 0..CIRCUIT_FAILURES - 1 {
            circuit.failed(at(100));
            assert_eq!(circuit.paused_until(at(0)), None);
        }
        circuit.failed(at(100));
        assert!(circuit.is_open());
        assert_eq!(circuit.paused_until(at(99)), Some(at(100)));
        assert_eq!(circuit.paused_until(at(100)), None);
        circuit.failed(at(160));
        assert_eq!(circuit.paused_until(at(100)), Some(at(160)));

        circuit.succeeded(at(160));
        assert_eq!(circuit.paused_until(at(160)), Some(at(161)));
        assert_eq!(circuit.paused_until(at(161)), None);
        circuit.succeeded(at(161));
        assert_eq!(circuit.paused_until(at(161)), None);
        circuit.succeeded(at(161));
        assert_eq!(circuit.paused_until(at(161)), Some(at(162)));
        for second in 162..168 {
            circuit.paused_until(at(second));
        }
        for _ in 0..1000 {
            circuit.succeeded(at(168));
            assert_eq!(circuit.paused_until(at(168)), None);
        }
    }

    #[test]
    fn retries_are_limited_to_a_fifth_of_all_sends() {
        let mut budget = RetryBudget::new(at(0));
        while budget.take(11, at(0)) {}
        let mut retries = 0;
        for _ in 0..400 {
            budget.sent();
            retries += u32::from(budget.take(11, at(0)));
        }
        assert_eq!(retries, 100);
        assert!(budget.take(10, at(0)), "few failing destinations are free");
        assert!(!budget.take(11, at(0)));
        assert!(budget.take(11, at(1)), "one a second always may");
        // A clock that was set back does not delay the next one.
        assert!(!budget.take(11, at(-3600)));
        assert!(budget.take(11, at(-3599)));
    }

    proptest! {
        #[test]
        fn the_next_attempt_is_in_the_future_and_within_the_maximum_age(
            attempt: u32, random: u64, age in 0i64..7200, after in proptest::option::of(0u64..100_000)
        ) {
            let (failure, now) = failed(attempt, FailureClass::Retryable, age, after);
            match Schedule::default().next(failure, now, random) {
                Next::At(next) => prop_assert!(next >= now && next <= at(3600)),
                Next::GiveUp => prop_assert!(age >= 3600),
            }
        }
    }
}
