//! What an HTTP/2 client may cost without asking for anything.
//!
//! A client is to be answered for every PING, and may give up every stream that it opens; nothing in the
//! protocol ends a conversation that consists of nothing else. A [`AbuseLimiter`] charges each frame what the
//! table of [states](super::states) says, and says when a client has used up what it has.
//!
//! The measure is the work that a client makes for us, not how many frames it sends a second. So what we do
//! for the application earns control frames: gRPC clients answer each message with a WINDOW_UPDATE and a
//! PING, and a stream of a thousand messages a second brings thousands of those. Each is cheaper than the
//! message was. And streams that are answered to their end earn resets: what a client asked for and took
//! cost more than what it cancels.
//!
//! A pure state machine; time is an argument. What follows its verdict is the caller's.

use std::time::{Duration, Instant};

use crate::http2::frame::Reason;
use crate::http2::states::Cost;

/// CONTINUATION frames of one field section.
pub const CONTINUATIONS_MAX: u32 = 8;
/// Streams reset by the client, or by us for its errors: at once, and a second.
pub const RESETS: (u32, u32) = (100, 20);
/// Control frames that nothing earned: at once, and a second.
pub const IDLE_FRAMES: (u32, u32) = (200, 50);
/// Control frames that a client can have earned at once: answers to as many small messages as fit into
/// its windows, and a few milliseconds of work if it spends them on nothing.
pub const EARNED_FRAMES_MAX: u32 = 16 << 10;
/// DATA bytes, either way, that earn a control frame.
const EARNING_BYTES: u64 = 256;
/// Control frames that a frame of an answer earns: a client widens the window of the stream and that of
/// the connection, and measures the way with a PING and what comes back of one.
const EARNED_BY_FRAME: u32 = 4;
/// Bytes of payload that cost as much as a frame, where no window counts them.
const PAYLOAD_BYTES: usize = 256;
/// Bytes of a refused field section that cost as much as a reset.
const REFUSED_BYTES: usize = 4 << 10;

/// What a client did too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// Streams reset, by itself or for its errors.
    Resets,
    /// Frames that bring nothing forward.
    IdleFrames,
    /// Pieces of one field section.
    Continuations,
}

/// Frames of one HTTP/2 connection, as a server sees them.
#[derive(Debug)]
pub(super) struct AbuseLimiter {
    resets: TokenBucket,
    control: TokenBucket,
    /// DATA bytes that have earned no control frame yet.
    earning: u64,
    continuations: u32,
}

impl AbuseLimiter {
    /// A connection none of whose frames have passed.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            resets: TokenBucket::new(RESETS, RESETS.0, now),
            control: TokenBucket::new(IDLE_FRAMES, EARNED_FRAMES_MAX, now),
            earning: 0,
            continuations: 0,
        }
    }

    /// Charges a frame from the client that carries so many bytes without padding; `ends` where it ends its
    /// stream.
    pub(super) fn charge(
        &mut self,
        cost: Cost,
        carried: usize,
        ends: bool,
        now: Instant,
    ) -> Result<(), Flood> {
        self.continuations = 0;
        match cost {
            Cost::Window if carried > 0 => self.carried(carried),
            Cost::Window if !ends => self.control.take(1, now, Flood::IdleFrames)?,
            // A request may come with a frame about its priority.
            Cost::Stream => self.control.earn(1),
            Cost::Control(frames) => {
                let frames = frames + (carried / PAYLOAD_BYTES) as u32;
                self.control.take(frames, now, Flood::IdleFrames)?;
            }
            // An error is charged when the stream is reset for it.
            Cost::Window | Cost::Once | Cost::Reset | Cost::End => {}
        }
        Ok(())
    }

    /// Charges a CONTINUATION within a field section.
    pub(super) fn continuation(&mut self, carried: usize, now: Instant) -> Result<(), Flood> {
        self.continuations += 1;
        if self.continuations > CONTINUATIONS_MAX {
            return Err(Flood::Continuations);
        }
        if carried == 0 {
            self.control.take(1, now, Flood::IdleFrames)?;
        }
        Ok(())
    }

    /// Charges a stream that the client resets before its answer is complete.
    pub(super) fn reset_by_peer(&mut self, now: Instant) -> Result<(), Flood> {
        self.resets.take(1, now, Flood::Resets)
    }

    /// Charges a stream that we reset, if it is for what the client did wrong.
    pub(super) fn reset_by_us(&mut self, reason: Reason, now: Instant) -> Result<(), Flood> {
        let is_ours = [Reason::NO_ERROR, Reason::INTERNAL_ERROR, Reason::CANCEL].contains(&reason);
        if is_ours {
            return Ok(());
        }
        self.resets.take(1, now, Flood::Resets)
    }

    /// Charges a field section of so many bytes that was decoded to be refused, beside the reset.
    pub(super) fn refused(&mut self, bytes: usize, now: Instant) -> Result<(), Flood> {
        match (bytes / REFUSED_BYTES) as u32 {
            0 => Ok(()),
            more => self.resets.take(more, now, Flood::Resets),
        }
    }

    /// Takes note of DATA to the client. `fills` where the client's window cut it to its size: then it
    /// says nothing of what the application did.
    pub(super) fn sent_data(&mut self, bytes: usize, fills: bool) {
        self.carried(bytes);
        if !fills {
            self.control.earn(EARNED_BY_FRAME);
        }
    }

    /// Takes note of a field section to the client.
    pub(super) fn sent_section(&mut self) {
        self.control.earn(EARNED_BY_FRAME);
    }

    /// Takes note of a stream that was answered to its end.
    pub(super) fn answered(&mut self) {
        self.resets.earn(1);
    }

    fn carried(&mut self, bytes: usize) {
        self.earning += bytes as u64;
        let earned = self.earning / EARNING_BYTES;
        if earned > 0 {
            self.control.earn(u32::try_from(earned).unwrap_or(u32::MAX));
            self.earning %= EARNING_BYTES;
        }
    }
}

/// So many at once, so many a second, and what was earned.
#[derive(Debug)]
struct TokenBucket {
    left: u32,
    /// What there is after a while in which nothing was taken, and what there is at most.
    burst: u32,
    most: u32,
    /// How long it takes until there is one more.
    every: Duration,
    at: Instant,
}

impl TokenBucket {
    fn new((burst, per_second): (u32, u32), most: u32, now: Instant) -> Self {
        Self {
            left: burst,
            burst,
            most,
            every: Duration::from_secs(1) / per_second,
            at: now,
        }
    }

    fn take(&mut self, count: u32, now: Instant, flood: Flood) -> Result<(), Flood> {
        if self.left < count {
            let more = now.saturating_duration_since(self.at).as_nanos() / self.every.as_nanos();
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            let filled = self.left.saturating_add(more).min(self.burst);
            self.left = self.left.max(filled);
            self.at = now;
        }
        self.left = self.left.checked_sub(count).ok_or(flood)?;
        Ok(())
    }

    fn earn(&mut self, count: u32) {
        self.left = self.left.saturating_add(count).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_fills_again() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new((2, 10), 2, start);
        let mut take = |after: u64| {
            bucket
                .take(1, start + Duration::from_millis(after), Flood::Resets)
                .is_ok()
        };
        assert!(take(0) && take(0));
        assert!(take(150), "one has come back");
        assert!(!take(200));
        assert!(take(100_000) && take(100_000));
        assert!(!take(100_000));
    }

    #[test]
    fn what_was_earned_has_a_limit_and_does_not_fill_again() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new((2, 10), 5, start);
        bucket.earn(u32::MAX);
        assert!(bucket.take(5, start, Flood::IdleFrames).is_ok());
        let later = start + Duration::from_secs(100);
        assert!(bucket.take(2, later, Flood::IdleFrames).is_ok());
        assert!(bucket.take(1, later, Flood::IdleFrames).is_err());
    }

    #[test]
    fn answers_earn_control_frames_unless_the_window_cut_them() {
        let now = Instant::now();
        let control = |limiter: &mut AbuseLimiter| limiter.charge(Cost::Control(1), 4, false, now);
        let mut limiter = AbuseLimiter::new(now);
        for _ in 0..100_000 {
            // A message of ten bytes, and what a gRPC client answers it with.
            limiter.sent_data(10, false);
            for _ in 0..EARNED_BY_FRAME {
                control(&mut limiter).unwrap();
            }
        }
        let mut limiter = AbuseLimiter::new(now);
        let mut frames = 0;
        while control(&mut limiter).is_ok() {
            limiter.sent_data(1, true);
            frames += 1;
        }
        assert_eq!(frames, IDLE_FRAMES.0);
    }

    #[test]
    fn large_payloads_cost_more() {
        let now = Instant::now();
        let mut limiter = AbuseLimiter::new(now);
        for _ in 0..3 {
            limiter
                .charge(Cost::Control(1), 16 << 10, false, now)
                .unwrap();
        }
        assert_eq!(
            limiter.charge(Cost::Control(1), 16 << 10, false, now),
            Err(Flood::IdleFrames)
        );
        let mut limiter = AbuseLimiter::new(now);
        limiter
            .refused(RESETS.0 as usize * REFUSED_BYTES, now)
            .unwrap();
        assert_eq!(limiter.refused(REFUSED_BYTES, now), Err(Flood::Resets));
        assert_eq!(limiter.refused(REFUSED_BYTES - 1, now), Ok(()));
    }

    #[test]
    fn only_resets_for_their_errors_count_among_ours() {
        let now = Instant::now();
        let mut limiter = AbuseLimiter::new(now);
        for reason in [Reason::NO_ERROR, Reason::INTERNAL_ERROR, Reason::CANCEL] {
            for _ in 0..1_000 {
                limiter.reset_by_us(reason, now).unwrap();
            }
        }
        for _ in 0..RESETS.0 {
            limiter.reset_by_us(Reason::PROTOCOL_ERROR, now).unwrap();
        }
        assert_eq!(
            limiter.reset_by_us(Reason::PROTOCOL_ERROR, now),
            Err(Flood::Resets)
        );
    }

    #[test]
    fn who_takes_what_it_asks_for_may_cancel_as_much() {
        let now = Instant::now();
        let mut limiter = AbuseLimiter::new(now);
        for _ in 0..10_000 {
            limiter.answered();
            limiter.reset_by_peer(now).unwrap();
        }
        for _ in 1..RESETS.0 {
            limiter.reset_by_peer(now).unwrap();
        }
        // What was answered before anything was reset earned nothing.
        limiter.reset_by_peer(now).unwrap_err();
    }
}
