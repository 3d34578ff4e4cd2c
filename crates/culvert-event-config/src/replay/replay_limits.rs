//! Limits on requests that are sent again: concurrent ones, and those of one owner in a minute.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use culvert_base::sync::lock;
use culvert_base::{FairPermits, Timestamp};

/// Maximum number of concurrent requests, of which one owner gets at most half, and of requests of one owner in a minute.
const REPLAYS_MAX: usize = 16;
const REPLAYS_PER_MINUTE: u32 = 60;
const MINUTE: Duration = Duration::from_secs(60);
/// Maximum number of owners that are counted. Beyond it, only those of the last minute are kept.
const OWNERS_MAX: usize = 4096;

/// Limits on requests that are sent again.
#[derive(Debug)]
pub struct ReplayLimits {
    pub(crate) running: FairPermits,
    /// When the minute of each owner began, and its requests since.
    owners: Mutex<HashMap<String, (Timestamp, u32)>>,
}

impl Default for ReplayLimits {
    fn default() -> Self {
        Self {
            running: FairPermits::new(REPLAYS_MAX),
            owners: Mutex::default(),
        }
    }
}

impl ReplayLimits {
    /// Counts a request of an owner. False if there were too many.
    pub fn count(&self, owner: &str, now: Timestamp) -> bool {
        let mut owners = lock(&self.owners);
        if owners.len() >= OWNERS_MAX && !owners.contains_key(owner) {
            owners.retain(|_, (since, _)| now < since.plus(MINUTE));
            if owners.len() >= OWNERS_MAX {
                return false;
            }
        }
        let (since, count) = owners.entry(owner.to_owned()).or_insert((now, 0));
        if now >= since.plus(MINUTE) {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        *count <= REPLAYS_PER_MINUTE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replays_of_an_owner_are_rate_limited() {
        let limits = ReplayLimits::default();
        let now = Timestamp::from_unix_nanos(0);
        let count = |at| (0..100).filter(|_| limits.count("usr_1", at)).count();
        assert_eq!(count(now), 60);
        assert!(limits.count("usr_2", now));
        assert_eq!(count(now.plus(MINUTE)), 60);
    }
}
