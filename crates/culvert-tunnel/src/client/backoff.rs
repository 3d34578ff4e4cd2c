//! The delay before the next attempt to connect.

use std::time::Duration;

use culvert_base::Entropy;

/// The delay after the first failure.
const FIRST: Duration = Duration::from_millis(500);
/// The maximum delay.
const LONGEST: Duration = Duration::from_secs(30);

/// Doubles from half a second to half a minute. Half of each delay is random, so that agents which lost the
/// same server do not reconnect at the same time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The delay after another failure.
    pub(crate) fn next(&mut self, entropy: &dyn Entropy) -> Duration {
        let whole = whole(self.failures);
        self.failures = self.failures.saturating_add(1);
        let chance = f64::from(u32::from_be_bytes(entropy.bytes())) / f64::from(u32::MAX);
        whole.mul_f64(0.5 + chance / 2.0)
    }

    /// Resets the delay after a connection that lasted at least as long as the delay before it. A server that accepts
    /// connections and closes them does not get them faster than one that refuses them.
    pub(crate) fn lasted(&mut self, duration: Duration) {
        if duration >= whole(self.failures.saturating_sub(1)) {
            self.failures = 0;
        }
    }
}

/// The longest delay after this many failures before the last one.
fn whole(failures: u32) -> Duration {
    FIRST.saturating_mul(1 << failures.min(16)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use culvert_base::SeededEntropy;

    use super::*;

    #[test]
    fn waits_double_to_half_a_minute_and_are_never_less_than_half() {
        let entropy = SeededEntropy::new(1);
        let mut backoff = Backoff::default();
        for whole in [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000] {
            let whole = Duration::from_millis(whole);
            let wait = backoff.next(&entropy);
            assert!(whole / 2 <= wait && wait <= whole, "{wait:?} of {whole:?}");
        }
        backoff.lasted(LONGEST);
        assert!(backoff.next(&entropy) <= FIRST);
    }

    #[test]
    fn connections_that_end_immediately_do_not_reset_the_wait() {
        let entropy = SeededEntropy::new(1);
        let mut backoff = Backoff::default();
        let mut waited = Duration::ZERO;
        for _ in 0..20 {
            waited += backoff.next(&entropy);
            backoff.lasted(Duration::from_millis(20));
        }
        assert!(waited > 10 * LONGEST / 2, "{waited:?}");
    }

    #[test]
    fn two_agents_do_not_wait_alike() {
        let mut waits = [1, 2].map(|seed| Backoff::default().next(&SeededEntropy::new(seed)));
        waits.sort();
        assert_ne!(waits[0], waits[1]);
    }
}
