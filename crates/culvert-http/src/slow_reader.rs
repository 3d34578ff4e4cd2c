//! Detects clients that read too slowly.
//!
//! Only time during which bytes wait for the client counts. Then it must read [`RATE_MIN`] bytes a second. Faster
//! reading earns credit, so that a player with a full buffer may pause; slower reading is a debt. A debt from one late
//! step is forgiven, because the windows of TCP and HTTP/2 open in steps, but it must not last.

use std::time::{Duration, Instant};

/// Bytes a second that a client must read while bytes wait.
pub const RATE_MIN: u32 = 256;
/// How long a client without credit may read nothing. One step is at least half of [`UNSENT_BYTES`], which takes 64
/// seconds at [`RATE_MIN`]; with large segments a window opens by 64 to 128 KiB, which takes a minute at 2 KiB a second.
const STALL_MAX: Duration = Duration::from_secs(120);
/// How far a client may be behind after it has read something.
const BEHIND_MAX: Duration = Duration::from_secs(20);
/// Bytes that the system may buffer unsent. More would hide for minutes how fast a client reads, and cost memory for
/// each slow client.
pub const UNSENT_BYTES: u32 = 32 << 10;

/// The credit or debt of one client.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlowReader {
    /// When bytes began to wait, and how many had been read by then.
    waiting: Option<(Instant, u64)>,
    /// Credit and debt. One of them is zero.
    ahead: Duration,
    behind: Duration,
}

/// The client reads too slowly and must be disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooSlow;

impl SlowReader {
    /// Bytes wait for the client, which has read `taken` in total. Returns when it must be disconnected if it reads nothing
    /// more. `write` is the longest time in which any client may read nothing.
    ///
    /// # Errors
    ///
    /// When the client is too slow.
    pub fn waits(&mut self, taken: u64, write: Duration, now: Instant) -> Result<Instant, TooSlow> {
        let stall = write.min(STALL_MAX);
        let (since, before) = *self.waiting.get_or_insert((now, taken));
        if taken != before {
            self.pass(now.saturating_duration_since(since));
            self.pay(taken.saturating_sub(before), write);
            self.waiting = Some((now, taken));
            // One late step is forgiven, a growing debt is not.
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

    /// Nothing waits for the client any more. Its debt is forgiven.
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

    /// Adds time that has passed.
    fn pass(&mut self, time: Duration) {
        self.behind += time.saturating_sub(self.ahead);
        self.ahead = self.ahead.saturating_sub(time);
    }

    /// Adds bytes that were read.
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

    /// How many seconds a client is kept that reads `takes` bytes in each second, while more bytes
    /// always wait.
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

    /// Reads at `rate`, in the steps of TCP: half of the bytes that the system buffers.
    fn in_steps(rate: u64) -> impl FnMut(u64) -> u64 {
        let step = u64::from(UNSENT_BYTES / 2);
        move |second| (second * rate / step - second.saturating_sub(1) * rate / step) * step
    }

    #[test]
    fn readers_that_take_too_little_are_cut() {
        // A client that reads nothing after the system's buffers are full.
        assert_eq!(kept(1_000, |_| 0), Some(120));
        // In steps, as with a socket, and byte by byte, as with HTTP/2 windows.
        for rate in [1, 32, 100, 177, 200] {
            let in_steps = kept(10_000, in_steps(rate)).expect("cut");
            assert!(in_steps <= 170, "{rate}: {in_steps}");
            let even = kept(10_000, |_| rate).expect("cut");
            assert!(even <= 100, "{rate}: {even}");
        }
        assert_eq!(kept(1_000, in_steps(177)), Some(93));
        assert!(kept(100_000, |_| 250).is_some());
        // A large read earns credit for five minutes, and no more.
        let greedy = kept(10_000, |second| if second == 1 { 1 << 30 } else { 0 });
        assert_eq!(greedy, Some(301));
        // With repeated reads, the client must still read at the minimum rate.
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
    fn a_stream_that_waits_for_its_source_owes_nothing() {
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
        // Faster than the minimum rate, but the write limit is one second.
        let later = start + second / 2;
        assert_eq!(reader.waits(1 << 20, second, later), Ok(later + second));
        assert_eq!(reader.waits(1 << 20, second, later + second), Err(TooSlow));
    }
}
