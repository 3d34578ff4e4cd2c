//! The rate of refusals for wrong credentials. Some agents retry with them indefinitely, so their replies are
//! delayed. Closing their connections instead would make other agents wait for hours.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use culvert_base::LimitTable;

/// The sustained rate: one refusal per second and source.
const EVERY: Duration = Duration::from_secs(1);
/// The burst.
const BURST: Duration = Duration::from_secs(10);
/// The maximum delay.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Maximum number of sources with their own count, and the number of counts that further sources share.
const SOURCES_MAX: usize = 4096;
const SHARED_MAX: usize = 1024;

#[derive(Debug)]
pub(crate) struct AuthBackoff {
    /// When a source's refusals would all have been sent at the sustained rate.
    until: Mutex<LimitTable<IpAddr, Option<Instant>>>,
}

impl Default for AuthBackoff {
    fn default() -> Self {
        Self {
            until: Mutex::new(LimitTable::new(SOURCES_MAX, SHARED_MAX)),
        }
    }
}

impl AuthBackoff {
    /// Counts a wrong credential of `source`. Returns the delay of its reply.
    pub(crate) fn wait(&self, source: IpAddr, now: Instant) -> Duration {
        let mut sources = self
            .until
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let until = sources.state(block(source), |until| {
            until.is_none_or(|until| until <= now)
        });
        // Capped, so that entries expire soon after their last use.
        let next = until.map_or(now, |until| until.max(now)) + EVERY;
        let next = next.min(now + BURST + WAIT_MAX);
        *until = Some(next);
        (next - now).saturating_sub(BURST).min(WAIT_MAX)
    }
}

/// The source by which refusals are counted: an IPv4 address, or the /64 of an IPv6 address.
fn block(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            Ipv6Addr::from(network).into()
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ten_are_answered_at_once_and_the_rest_once_a_second() {
        let (pace, now) = (AuthBackoff::default(), Instant::now());
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
        let (pace, now) = (AuthBackoff::default(), Instant::now());
        for source in 0..10_000u32 {
            pace.wait(IpAddr::from(source.to_be_bytes()), now);
        }
        assert_eq!(pace.until.lock().unwrap().len(), SOURCES_MAX);
        // Further sources share counts, and wait if the sources they share with were refused too often.
        let mut longest = Duration::ZERO;
        for source in 10_000..40_000u32 {
            longest = longest.max(pace.wait(IpAddr::from(source.to_be_bytes()), now));
        }
        assert_eq!(longest, WAIT_MAX);
        // After all entries have expired, there is room again.
        let later = now + Duration::from_secs(30);
        let new = IpAddr::from([9, 9, 9, 9]);
        assert_eq!(pace.wait(new, later), Duration::ZERO);
        assert!(pace.until.lock().unwrap().len() < SOURCES_MAX);
    }

    #[test]
    fn others_do_not_reset_a_source_and_a_network_is_one() {
        let (pace, now) = (AuthBackoff::default(), Instant::now());
        let wrong = IpAddr::from([192, 0, 2, 1]);
        for _ in 0..15 {
            pace.wait(wrong, now);
        }
        for source in 0..10_000u32 {
            pace.wait(IpAddr::from(source.to_be_bytes()), now);
        }
        assert_eq!(pace.wait(wrong, now), Duration::from_secs(6));
        let pace = AuthBackoff::default();
        for host in 0..10u16 {
            let address = IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, host]);
            assert_eq!(pace.wait(address, now), Duration::ZERO);
        }
        let address = IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, 99]);
        assert_eq!(pace.wait(address, now), EVERY);
    }
}
