//! How fast wrong credentials are answered. Some agents call in for ever with them; they are made
//! to wait for their answer, because a refusal to listen makes others wait for hours.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// One wrong answer a second and source in the long run.
const EVERY: Duration = Duration::from_secs(1);
/// So many at once.
const BURST: Duration = Duration::from_secs(10);
/// Longest wait.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Sources remembered; beyond it all strangers wait.
const SOURCES_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When all of a source's answers would have been given one by one.
    until: Mutex<BTreeMap<IpAddr, Instant>>,
}

impl Pace {
    /// Counts a wrong credential of `source` and says how long its answer should wait.
    pub(crate) fn wait(&self, source: IpAddr, now: Instant) -> Duration {
        let mut sources = self
            .until
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if sources.len() >= SOURCES_MAX {
            sources.retain(|_, until| *until > now);
        }
        if sources.len() >= SOURCES_MAX && !sources.contains_key(&source) {
            return EVERY;
        }
        let until = sources.entry(source).or_insert(now);
        *until = (*until).max(now) + EVERY;
        (*until - now).saturating_sub(BURST).min(WAIT_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ten_are_answered_at_once_and_the_rest_once_a_second() {
        let (pace, now) = (Pace::default(), Instant::now());
        let source = IpAddr::from([192, 0, 2, 1]);
        for _ in 0..10 {
            assert_eq!(pace.wait(source, now), Duration::ZERO);
        }
        assert_eq!(pace.wait(source, now), Duration::from_secs(1));
        assert_eq!(pace.wait(source, now), Duration::from_secs(2));
        let other = IpAddr::from([192, 0, 2, 2]);
        assert_eq!(pace.wait(other, now), Duration::ZERO);
        let later = now + Duration::from_secs(60);
        assert_eq!(pace.wait(source, later), Duration::ZERO);
        for _ in 0..100 {
            pace.wait(source, now);
        }
        assert_eq!(pace.wait(source, now), WAIT_MAX);
    }

    #[test]
    fn no_number_of_sources_makes_it_grow() {
        let (pace, now) = (Pace::default(), Instant::now());
        for source in 0..10_000u32 {
            pace.wait(IpAddr::from(source.to_be_bytes()), now);
        }
        assert_eq!(pace.until.lock().unwrap().len(), SOURCES_MAX);
        assert_eq!(pace.wait(IpAddr::from([9, 9, 9, 9]), now), EVERY);
    }
}
