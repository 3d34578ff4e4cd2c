//! Decides when a client that does not take what waits for it is cut.
//!
//! Only the time during which bytes wait for the client counts: a stream that waits for its source owes
//! nothing. Then the client owes [`RATE_MIN`] bytes a second. What it takes faster counts ahead, so that a
//! player that has buffered may pause; what it takes slower is a debt. A debt may come from one step that
//! was long in coming, because windows of TCP and of HTTP/2 open in steps, but it may not last.

use std::time::{Duration, Instant};

/// Bytes a second that a client must take of what waits for it.
pub const RATE_MIN: u32 = 256;
/// How long a client that has nothing to its credit may take nothing. A step is half of [`UNSENT_BYTES`]
/// at least, which takes 64 seconds at [`RATE_MIN`]; where segments are large a window opens by 64 to
/// 128 KiB, which takes a minute at 2 KiB a second.
const STALL_MAX: Duration = Duration::from_secs(120);
/// How far a client may be behind when it has just taken something.
const BEHIND_MAX: Duration = Duration::from_secs(20);
/// Bytes that the system keeps of what is written and not sent. More would hide for minutes what a client
/// takes, and cost memory for each slow one.
pub const UNSENT_BYTES: u32 = 32 << 10;

/// How far a client is ahead of what it owes, or behind.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlowReader {
    /// Since when bytes wait, and how many had been taken then.
    waiting: Option<(Instant, u64)>,
    /// Time that was paid for ahead, and time that is owed. One of them is zero.
    ahead: Duration,
    behind: Duration,
}

/// The client is to be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooSlow;

impl SlowReader {
    /// Bytes wait for the client, which has taken `taken` so far. Gives the moment at which it is cut if it
    /// takes no more until then. `write` is the longest that any client may take nothing.
    ///
    /// # Errors
    ///
    /// When the client is too slow already.
    pub fn waits(&mut self, taken: u64, write: Duration, now: Instant) -> Result<Instant, TooSlow> {
        let stall = write.min(STALL_MAX);
        let (since, before) = *self.waiting.get_or_insert((now, taken));
        if taken != before {
            self.pass(now.saturating_duration_since(since));
            self.pay(taken.saturating_sub(before), write);
            self.waiting = Some((now, taken));
            // A step that took long is forgiven, a pace that falls behind more and more is not.
            if self.behind > BEHIND_MAX.min(stall / 2) {
                return Err(TooSlow);
            }
        }
        let (since, _) = self.waiting.unwrap_or((now, taken));
        let deadline = since + self.ahead + stall.saturating_sub(self.behind);
        if now >= deadline {
            return Err(TooSlow);
        }
        Ok(deadline)
    }

    /// Nothing waits for the client any more: it is owed nothing, and owes nothing.
    pub fn caught_up(&mut self, taken: u64, write: Duration, now: Instant) {
        let Some((since, before)) = self.waiting.take() else {
            return;
        };
        self.pass(now.saturating_duration_since(since));
        self.pay(taken.saturating_sub(before), write);
        self.behind = Duration::ZERO;
    }

    /// Whether bytes wait.
    pub fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// So much time has passed.
    fn pass(&mut self, time: Duration) {
        self.behind += time.saturating_sub(self.ahead);
        self.ahead = self.ahead.saturating_sub(time);
    }

    /// So many bytes were taken.
    fn pay(&mut self, bytes: u64, write: Duration) {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(RATE_MIN);
        let paid = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let ahead_max = write.saturating_sub(STALL_MAX);
        let ahead = paid.saturating_sub(self.behind);
        self.behind = self.behind.saturating_sub(paid);
        self.ahead = self.ahead.saturating_add(ahead).min(ahead_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: Duration = Duration::from_secs(300);

    /// How long a client is kept that takes what `takes` says in each second, where there is always more.
    fn kept(seconds: u64, mut takes: impl FnMut(u64) -> u64) -> Option<u64> {
        let start = Instant::now();
        let (mut reader, mut taken) = (SlowReader::default(), 0);
        for second in 0..seconds {
            taken += takes(second);
            let now = start + Duration::from_secs(second);
            if reader.waits(taken, WRITE, now).is_err() {
                return Some(second);
            }
        }
        None
    }

    /// Bytes of `rate` as TCP gives them out: in steps of half of what waits in the system.
    fn in_steps(rate: u64) -> impl FnMut(u64) -> u64 {
        let step = u64::from(UNSENT_BYTES / 2);
        move |second| (second * rate / step - second.saturating_sub(1) * rate / step) * step
    }

    #[test]
    fn readers_that_take_too_little_are_cut() {
        // Nothing at all, after what the system took.
        assert_eq!(kept(1_000, |_| 0), Some(120));
        // In steps, as a socket shows it, and byte by byte, as windows of HTTP/2 may.
        for rate in [1, 32, 100, 177, 200] {
            let in_steps = kept(10_000, in_steps(rate)).expect("cut");
            assert!(in_steps <= 170, "{rate}: {in_steps}");
            let even = kept(10_000, |_| rate).expect("cut");
            assert!(even <= 100, "{rate}: {even}");
        }
        assert_eq!(kept(1_000, in_steps(177)), Some(93));
        assert!(kept(100_000, |_| 250).is_some());
        // A lot at once buys five minutes and no more.
        let greedy = kept(10_000, |second| if second == 1 { 1 << 30 } else { 0 });
        assert_eq!(greedy, Some(301));
        // And again, and again: then the least rate is what it costs.
        assert_eq!(
            kept(1_000, |second| u64::from(second % 290 == 1) << 17),
            None
        );
    }

    #[test]
    fn honest_readers_are_kept() {
        let hour = 3_600;
        assert_eq!(kept(hour, |_| 256), None);
        // `curl --limit-rate 2k`, where the window opens in steps of 64 and of 128 KiB.
        let mut in_large_steps = |second: u64| if second % 32 == 31 { 64 << 10 } else { 0 };
        assert_eq!(kept(hour, &mut in_large_steps), None);
        let mut in_large_steps = |second: u64| if second % 64 == 63 { 128 << 10 } else { 0 };
        assert_eq!(kept(hour, &mut in_large_steps), None);
        assert_eq!(kept(hour, in_steps(300)), None);
        // A phone at 20 KiB a second that has no network for 20 seconds out of 30.
        let mut phone = |second: u64| if second % 30 < 10 { 20 << 10 } else { 0 };
        assert_eq!(kept(hour, &mut phone), None);
        // A player that pauses for one minute, and for four, after it has played.
        let mut player = |second: u64| if second % 120 < 60 { 500 << 10 } else { 0 };
        assert_eq!(kept(hour, &mut player), None);
        let mut player = |second: u64| if second % 300 < 60 { 500 << 10 } else { 0 };
        assert_eq!(kept(hour, &mut player), None);
    }

    #[test]
    fn a_stream_that_waits_for_data_owes_nothing() {
        let start = Instant::now();
        let mut reader = SlowReader::default();
        for minute in 0..600 {
            let now = start + Duration::from_secs(60 * minute);
            assert!(reader.waits(10 * minute, WRITE, now).is_ok());
            reader.caught_up(10 * minute + 10, WRITE, now + Duration::from_secs(1));
        }
    }

    #[test]
    fn a_short_limit_holds() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut reader = SlowReader::default();
        assert_eq!(reader.waits(0, second, start), Ok(start + second));
        // Faster than it must be, but the limit is a second.
        let later = start + second / 2;
        assert_eq!(reader.waits(1 << 20, second, later), Ok(later + second));
        assert_eq!(reader.waits(1 << 20, second, later + second), Err(TooSlow));
    }
}
