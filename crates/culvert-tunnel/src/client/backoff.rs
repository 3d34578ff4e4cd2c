//! The delay before the next attempt to connect.

use std::time::Duration;

use culvert_base::Entropy;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::session;

/// The delay after the first failure.
const FIRST: Duration = Duration::from_millis(500);
/// Less time online is as good as none.
const LASTED: Duration = Duration::from_secs(2);
/// The maximum delay.
const LONGEST: Duration = Duration::from_secs(30);
/// The maximum of the first delay after at least [`LONGEST`] online. All agents of a server that restarts lose it at the
/// same time.
const SPREAD: Duration = Duration::from_secs(2);

/// Doubles from half a second to half a minute. Half of each delay is random, so that agents which lost the
/// same server do not reconnect at the same time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    /// The next delay is no longer.
    at_most: Option<Duration>,
    /// Whether the next delay is between zero and [`SPREAD`].
    is_spread: bool,
}

impl Backoff {
    /// The delay after another failure.
    pub(crate) fn next(&mut self, entropy: &dyn Entropy) -> Duration {
        let whole = whole(self.failures).min(self.at_most.take().unwrap_or(LONGEST));
        self.failures = self.failures.saturating_add(1);
        let chance = f64::from(u32::from_be_bytes(entropy.bytes())) / f64::from(u32::MAX);
        if std::mem::take(&mut self.is_spread) {
            return SPREAD.mul_f64(chance);
        }
        whole.mul_f64(0.5 + chance / 2.0)
    }

    /// Resets the delay after an agent was online for at least two seconds, and as long as the delay before. If it was
    /// online for less than that delay, the next one is no longer than it was online, and those after it go on growing. A
    /// server that accepts connections and closes them immediately does not get them faster than one that refuses them.
    pub(crate) fn lasted(&mut self, duration: Duration) {
        if duration >= whole(self.failures.saturating_sub(1)).max(LASTED) {
            *self = Self {
                is_spread: duration >= LONGEST,
                ..Self::default()
            };
        } else if duration >= LASTED {
            self.at_most = Some(duration);
        }
    }

    /// Waits for `after`. One of the `changes` of the network ends that wait: the delays begin from the first. Returns
    /// whether the wait ended before `stop`.
    pub(crate) async fn wait(
        &mut self,
        after: Duration,
        changes: Option<&mut watch::Receiver<u64>>,
        entropy: &dyn Entropy,
        stop: &CancellationToken,
    ) -> bool {
        let changed = async {
            match changes {
                Some(changes) => session::changed(changes).await,
                None => std::future::pending().await,
            }
        };
        let waiting = async {
            tokio::select! {
                () = tokio::time::sleep(after) => {}
                () = changed => {
                    *self = Self::default();
                    tokio::time::sleep(self.next(entropy)).await;
                }
            }
        };
        tokio::select! {
            () = waiting => true,
            () = stop.cancelled() => false,
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
    use tokio::time::Instant;

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
        backoff.lasted(LONGEST - Duration::from_millis(1));
        let waits = [backoff.next(&entropy), backoff.next(&entropy)];
        assert!(waits[0] > FIRST, "it was online for less than the delay");
        backoff.lasted(LONGEST);
        assert!(backoff.next(&entropy) <= SPREAD);
        assert!(backoff.next(&entropy) <= 2 * FIRST);
    }

    #[test]
    fn agents_that_lose_a_server_after_a_long_time_come_back_at_different_times() {
        let delays = (0..1_000).map(|seed| {
            let mut backoff = Backoff::default();
            backoff.lasted(LONGEST);
            backoff.next(&SeededEntropy::new(seed))
        });
        let mut quarters = [0; 4];
        for delay in delays {
            quarters[((delay.as_millis() * 4 / SPREAD.as_millis()) as usize).min(3)] += 1;
        }
        assert!(quarters.iter().all(|it| *it > 150), "{quarters:?}");
    }

    #[test]
    fn less_than_two_seconds_online_never_resets_the_wait() {
        let entropy = SeededEntropy::new(1);
        for lasted in [FIRST, 2 * FIRST, LASTED - Duration::from_millis(1)] {
            let mut backoff = Backoff::default();
            let mut waited = Duration::ZERO;
            for _ in 0..20 {
                waited += backoff.next(&entropy);
                backoff.lasted(lasted);
            }
            assert!(waited > 10 * LONGEST / 2, "{waited:?} with {lasted:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_the_network_ends_only_a_wait_for_it() {
        let (entropy, stop) = (SeededEntropy::new(1), CancellationToken::new());
        let changes = watch::Sender::new(0);
        for (minds, expected) in [(true, FIRST), (false, LONGEST)] {
            let mut backoff = Backoff::default();
            let mut receiver = changes.subscribe();
            changes.send_modify(|count| *count += 1);
            let began = Instant::now();
            let minded = minds.then_some(&mut receiver);
            assert!(backoff.wait(LONGEST, minded, &entropy, &stop).await);
            assert!(began.elapsed() <= expected && began.elapsed() >= expected / 2);
        }
        // Also in the delay after a change.
        let mut receiver = changes.subscribe();
        changes.send_modify(|count| *count += 1);
        stop.cancel();
        let began = Instant::now();
        let mut backoff = Backoff::default();
        let waited = backoff.wait(LONGEST, Some(&mut receiver), &entropy, &stop);
        assert!(!waited.await);
        assert_eq!(began.elapsed(), Duration::ZERO);
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
    fn an_agent_that_was_online_for_a_while_is_not_away_for_longer() {
        let entropy = SeededEntropy::new(1);
        for lasted in [LASTED, Duration::from_millis(4700), LONGEST / 2] {
            let mut backoff = Backoff::default();
            for _ in 0..8 {
                backoff.next(&entropy);
            }
            // Again and again, without a reset.
            for _ in 0..20 {
                backoff.lasted(lasted);
                let wait = backoff.next(&entropy);
                assert!(wait <= lasted, "{wait:?} after {lasted:?}");
                assert!(wait >= lasted / 2, "{wait:?} after {lasted:?}");
            }
            assert!(backoff.next(&entropy) >= LONGEST / 2, "it was not online");
        }
    }

    #[test]
    fn two_agents_do_not_wait_alike() {
        let mut waits = [1, 2].map(|seed| Backoff::default().next(&SeededEntropy::new(seed)));
        waits.sort();
        assert_ne!(waits[0], waits[1]);
    }
}
