//! A clock that does not jump with the clock that it reads.
//!
//! ```text
//! reading differs by     time
//! at most a second       follows the reading
//! more, for a while      continues at its own pace: a glitch has no effect
//! more, steadily         is set to the reading; users that keep times look at `Clock::times_set`
//! ```

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::sync::lock;
use crate::{Clock, Timestamp};

/// The greatest difference that is followed immediately.
const FOLLOWED_MAX: Duration = Duration::from_secs(1);
/// How long readings must agree before the clock is set to them.
const SETTLED_AFTER: Duration = Duration::from_secs(30);

/// A clock that advances with the monotonic clock of the machine, and follows the readings of another clock.
#[derive(Debug)]
pub struct SteadyClock {
    began: Instant,
    /// The time at `began`, in nanoseconds since the Unix epoch.
    origin: AtomicI64,
    times_set: AtomicU64,
    pending: Mutex<Option<Pending>>,
}

/// Readings that differ from the time, but agree with each other.
#[derive(Clone, Copy, Debug)]
struct Pending {
    origin: i64,
    since: Duration,
}

/// What a reading showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// It agrees with the time.
    Agrees,
    /// The clock that is read was set by this many nanoseconds. The time continues at its own pace.
    Differs(i64),
    /// It differs like the readings before it.
    DiffersStill,
    /// The clock that is read was set back to where it was.
    AgreesAgain,
    /// The time was set by this many nanoseconds, because readings agreed for long enough.
    Set(i64),
}

impl Reading {
    /// What an operator should know of it.
    pub fn notice(self) -> Option<String> {
        let step = |nanos: i64| {
            let seconds = Duration::from_nanos(nanos.unsigned_abs()).as_secs_f64();
            let direction = if nanos < 0 { "back" } else { "forward" };
            format!("{direction} by {seconds:.1} s")
        };
        match self {
            Self::Agrees | Self::DiffersStill => None,
            Self::Differs(nanos) => Some(format!(
                "the clock was set {}; times continue as before until that has lasted for {} s",
                step(nanos),
                SETTLED_AFTER.as_secs()
            )),
            Self::AgreesAgain => Some("the clock shows the time again".to_owned()),
            Self::Set(nanos) => Some(format!("times now follow the clock, {}", step(nanos))),
        }
    }
}

impl SteadyClock {
    /// A clock that begins with this reading.
    pub fn new(reading: Timestamp) -> Self {
        Self {
            began: Instant::now(),
            origin: AtomicI64::new(reading.unix_nanos()),
            times_set: AtomicU64::new(0),
            pending: Mutex::default(),
        }
    }

    /// Takes a reading of the clock that this one follows, which showed `reading` at `seen`.
    pub fn observe(&self, reading: Timestamp, seen: Instant) -> Reading {
        self.observe_after(reading, seen.saturating_duration_since(self.began))
    }

    fn observe_after(&self, reading: Timestamp, elapsed: Duration) -> Reading {
        let nanos = i64::try_from(elapsed.as_nanos()).unwrap_or(i64::MAX);
        let origin = reading.unix_nanos().saturating_sub(nanos);
        let difference = origin.saturating_sub(self.origin.load(Ordering::Relaxed));
        let mut pending = lock(&self.pending);
        if is_followed(difference) {
            self.origin.store(origin, Ordering::Relaxed);
            return match pending.take() {
                Some(_) => Reading::AgreesAgain,
                None => Reading::Agrees,
            };
        }
        match &mut *pending {
            Some(before) if is_followed(origin.saturating_sub(before.origin)) => {
                before.origin = origin;
                if elapsed.saturating_sub(before.since) < SETTLED_AFTER {
                    return Reading::DiffersStill;
                }
                *pending = None;
                self.origin.store(origin, Ordering::Relaxed);
                self.times_set.fetch_add(1, Ordering::Release);
                Reading::Set(difference)
            }
            other => {
                let since = elapsed;
                *other = Some(Pending { origin, since });
                Reading::Differs(difference)
            }
        }
    }
}

fn is_followed(nanos: i64) -> bool {
    u128::from(nanos.unsigned_abs()) <= FOLLOWED_MAX.as_nanos()
}

impl Clock for SteadyClock {
    fn now(&self) -> Timestamp {
        let origin = self.origin.load(Ordering::Relaxed);
        Timestamp::from_unix_nanos(origin).plus(self.began.elapsed())
    }

    fn times_set(&self) -> u64 {
        self.times_set.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_800_000_000;
    const SECOND: i64 = 1_000_000_000;

    /// Readings each second, which differ from the true time by this many seconds.
    fn read(offsets: impl IntoIterator<Item = i64>) -> (SteadyClock, Vec<Reading>) {
        let clock = SteadyClock::new(Timestamp::from_unix_seconds(START));
        let readings = (1..).zip(offsets).map(|(second, offset)| {
            let elapsed = Duration::from_secs(u64::try_from(second).unwrap());
            clock.observe_after(
                Timestamp::from_unix_seconds(START + second + offset),
                elapsed,
            )
        });
        let readings = readings.collect();
        (clock, readings)
    }

    fn is_off_by(clock: &SteadyClock, seconds: i64) -> bool {
        clock.origin.load(Ordering::Relaxed) == (START + seconds) * SECOND
    }

    #[test]
    fn a_glitch_in_either_direction_has_no_effect() {
        for size in [3600, -3600, 3 * 365 * 86_400] {
            let (clock, readings) = read([0, size, size, size, 0, 0]);
            use Reading::*;
            let differs = [Agrees, Differs(size * SECOND), DiffersStill, DiffersStill];
            assert_eq!(readings[..4], differs);
            assert_eq!(readings[4..], [AgreesAgain, Agrees]);
            assert!(is_off_by(&clock, 0));
            assert_eq!(clock.times_set(), 0);
        }
    }

    #[test]
    fn a_step_that_stays_sets_the_time() {
        for size in [3600, -3600] {
            let (clock, readings) = read(std::iter::repeat_n(size, 40));
            assert_eq!(readings[0], Reading::Differs(size * SECOND));
            assert!(
                readings[1..30]
                    .iter()
                    .all(|one| *one == Reading::DiffersStill)
            );
            assert_eq!(readings[30], Reading::Set(size * SECOND));
            assert!(readings[31..].iter().all(|one| *one == Reading::Agrees));
            assert!(is_off_by(&clock, size));
            assert_eq!(clock.times_set(), 1);
            let notice = readings[30].notice().unwrap();
            assert!(notice.contains("by 3600.0 s"), "{notice}");
        }
    }

    #[test]
    fn readings_that_do_not_agree_with_each_other_set_nothing() {
        let (clock, readings) = read((0..200).map(|n| n * 7 % 90 * 60 + 60));
        let is_differing = |one: &Reading| matches!(one, Reading::Differs(_));
        assert!(readings.iter().all(is_differing), "{readings:?}");
        assert!(is_off_by(&clock, 0));
    }

    #[test]
    fn a_clock_that_is_slewed_is_followed() {
        let (clock, readings) = read(0..100);
        assert!(readings.iter().all(|one| *one == Reading::Agrees));
        assert!(is_off_by(&clock, 99));
        assert!(clock.now() >= Timestamp::from_unix_seconds(START + 99));
    }
}
