//! How near the process is to its end of memory and files, and what the edge stops doing for it
//! (reliability 5).
//!
//! A level is entered the moment a share is reached, and left one at a time, when the share was ten
//! points lower for two seconds.

use std::time::Duration;

use tokio::time::Instant;

/// How often the shares are looked at.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Idle time of a connection at [`Level::Busy`].
pub(crate) const IDLE_WHEN_BUSY: Duration = Duration::from_secs(5);
/// How long the share must be lower before a level is left.
const CALM_FOR: Duration = Duration::from_secs(2);
/// Points below its entry at which a level may be left.
const CALM_BELOW: u64 = 10;

/// How far the edge is under pressure, and what it sheds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Nothing is shed.
    Calm = 0,
    /// Idle connections are kept for a short time only.
    Busy = 1,
    /// Connections are closed when they become idle.
    Tight = 2,
    /// New requests are answered 503, new connections closed.
    Full = 3,
}

impl Level {
    const ALL: [(Self, u64); 4] = [
        (Self::Calm, 0),
        (Self::Busy, 70),
        (Self::Tight, 85),
        (Self::Full, 95),
    ];

    pub(crate) fn of(number: u8) -> Self {
        match number {
            0 => Self::Calm,
            1 => Self::Busy,
            2 => Self::Tight,
            _ => Self::Full,
        }
    }

    /// The percentage at which it is entered.
    fn entry(self) -> u64 {
        Self::ALL
            .iter()
            .find(|(level, _)| *level == self)
            .map_or(0, |(_, entry)| *entry)
    }

    /// The highest level of a percentage.
    fn at(percent: u64) -> Self {
        Self::ALL
            .iter()
            .rev()
            .find(|(_, entry)| *entry <= percent)
            .map_or(Self::Calm, |(level, _)| *level)
    }
}

/// The level over time.
#[derive(Debug)]
pub(crate) struct Pressure {
    level: Level,
    /// Since when the share is low enough to leave the level.
    calm_since: Option<Instant>,
}

impl Default for Pressure {
    fn default() -> Self {
        Self {
            level: Level::Calm,
            calm_since: None,
        }
    }
}

impl Pressure {
    /// The level after a look that found `percent` used.
    pub(crate) fn observe(&mut self, percent: u64, now: Instant) -> Level {
        let reached = Level::at(percent);
        if reached > self.level {
            self.level = reached;
        }
        let is_calm = percent + CALM_BELOW <= self.level.entry();
        if !is_calm {
            self.calm_since = None;
            return self.level;
        }
        let since = *self.calm_since.get_or_insert(now);
        if now.saturating_duration_since(since) >= CALM_FOR {
            self.level = Level::of((self.level as u8).saturating_sub(1));
            self.calm_since = None;
        }
        self.level
    }
}

/// What of its memory and files the process uses: the larger share, in percent. What the system does
/// not tell counts as nothing.
pub(crate) fn share(memory_bytes: u64, files: u64) -> u64 {
    let percent = |used: Option<u64>, of: u64| used.unwrap_or(0).saturating_mul(100) / of.max(1);
    percent(memory(), memory_bytes).max(percent(open_files(), files))
}

/// Bytes of memory that are the process's own.
fn memory() -> Option<u64> {
    const PAGE_BYTES: u64 = 4096;
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = text.split(' ').skip(1).map(str::parse::<u64>);
    let (resident, shared) = (pages.next()?.ok()?, pages.next()?.ok()?);
    Some(resident.saturating_sub(shared).saturating_mul(PAGE_BYTES))
}

/// Half of what the machine or its control group gives, whichever is less.
pub(crate) fn memory_max() -> u64 {
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").unwrap_or_default();
    let group = group.trim().parse::<u64>().ok();
    let host = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let host = host
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|kib| kib.parse::<u64>().ok())
        .map(|kib| kib.saturating_mul(1024));
    [group, host]
        .into_iter()
        .flatten()
        .fold(u64::MAX, |least, given| least.min(given / 2))
}

/// Files that are open, where the system counts them.
fn open_files() -> Option<u64> {
    Some(std::fs::metadata("/proc/self/fd").ok()?.len())
}

/// Files the process may use: four fifths of what it may open, the rest is a reserve.
pub(crate) fn files_max() -> u64 {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let soft = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|soft| soft.parse::<u64>().ok());
    soft.map_or(u64::MAX, |soft| soft / 5 * 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_entered_at_once_and_left_one_by_one() {
        let start = Instant::now();
        let mut pressure = Pressure::default();
        let mut look =
            |percent, millis| pressure.observe(percent, start + Duration::from_millis(millis));
        assert_eq!(look(69, 0), Level::Calm);
        assert_eq!(look(70, 100), Level::Busy);
        assert_eq!(look(96, 200), Level::Full);
        // Not low enough, or not for long enough.
        assert_eq!(look(86, 300), Level::Full);
        assert_eq!(look(85, 400), Level::Full);
        assert_eq!(look(86, 2_000), Level::Full);
        assert_eq!(look(10, 3_000), Level::Full);
        assert_eq!(look(10, 4_999), Level::Full);
        assert_eq!(look(10, 5_000), Level::Tight);
        assert_eq!(look(10, 6_000), Level::Tight);
        assert_eq!(look(10, 8_000), Level::Busy);
        assert_eq!(look(10, 8_100), Level::Busy);
        assert_eq!(look(10, 10_100), Level::Calm);
        assert_eq!(look(10, 60_000), Level::Calm);
    }

    #[test]
    fn the_process_is_seen() {
        // Where the system tells nothing, nothing is shed.
        if std::path::Path::new("/proc/self/statm").exists() {
            assert!(memory().is_some_and(|bytes| bytes > 0));
            assert!(files_max() < u64::MAX);
        }
        assert_eq!(share(u64::MAX, u64::MAX), 0);
    }
}
