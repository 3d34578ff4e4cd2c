//! Limits what an HTTP/2 client can make the server do without requesting anything.
//!
//! A server must answer every PING, and a client may reset every stream it opens; the protocol itself sets no
//! limit. The limiter charges each frame the cost that the table of [states](super::states) gives it, and
//! reports when a client has spent its allowance.
//!
//! The measure is work for the server, not frames per second. So work for the application earns control frames:
//! gRPC clients reply to each message with a WINDOW_UPDATE and a PING, and a stream of a thousand messages a second
//! brings thousands of those. Each is cheaper than the message was. Complete responses earn resets: what a client
//! requested and read cost more than what it cancels.
//!
//! A state machine; time is an argument.

use std::time::{Duration, Instant};

use crate::http2::frame::Reason;
use crate::http2::states::Cost;

/// Most CONTINUATION frames of one field section.
pub const CONTINUATIONS_MAX: u32 = 8;
/// Stream resets by the client, or because of its errors: burst, and rate per second.
pub const RESETS: (u32, u32) = (100, 20);
/// Control frames that were not earned: burst, and rate per second.
pub const IDLE_FRAMES: (u32, u32) = (200, 50);
/// Most control frames that a client can save up: enough for replies to all small messages that fit into its
/// windows, and a few milliseconds of work if they are misused.
pub const EARNED_FRAMES_MAX: u32 = 16 << 10;
/// DATA bytes, in either direction, that earn one control frame.
const EARNING_BYTES: u64 = 256;
/// Control frames that one frame of a response earns: a client updates the windows of stream and connection, and
/// may measure the round trip with a PING.
const EARNED_BY_FRAME: u32 = 4;
/// Payload bytes that cost as much as one control frame, where no window limits them.
const PAYLOAD_BYTES: usize = 256;
/// Bytes of a refused field section that cost as much as one reset.
const REFUSED_BYTES: usize = 4 << 10;

/// The limit that a client exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// Stream resets.
    Resets,
    /// Control frames without progress.
    IdleFrames,
    /// CONTINUATION frames of one field section.
    Continuations,
}

/// The allowance of one connection.
#[derive(Debug)]
pub(super) struct AbuseLimiter {
    resets: TokenBucket,
    control: TokenBucket,
    /// DATA bytes that have not earned a control frame yet.
    earning: u64,
    continuations: u32,
}

impl AbuseLimiter {
    /// The allowance of a new connection.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            resets: TokenBucket::new(RESETS, RESETS.0, now),
            control: TokenBucket::new(IDLE_FRAMES, EARNED_FRAMES_MAX, now),
            earning: 0,
            continuations: 0,
        }
    }

    /// Charges a frame with `carried` bytes of payload, without padding. `ends` if the frame ends its stream.
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
            // A PRIORITY frame may come with each request.
            Cost::Stream => self.control.earn(1),
            Cost::Control(frames) => {
                let frames = frames + (carried / PAYLOAD_BYTES) as u32;
                self.control.take(frames, now, Flood::IdleFrames)?;
            }
            // Errors are charged when the stream is reset.
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

    /// Charges a reset by the client before its response was complete.
    pub(super) fn reset_by_peer(&mut self, now: Instant) -> Result<(), Flood> {
        self.resets.take(1, now, Flood::Resets)
    }

    /// Charges a reset by the server, if the client caused it.
    pub(super) fn reset_by_us(&mut self, reason: Reason, now: Instant) -> Result<(), Flood> {
        let is_ours = [Reason::NO_ERROR, Reason::INTERNAL_ERROR, Reason::CANCEL].contains(&reason);
        if is_ours {
            return Ok(());
        }
        self.resets.take(1, now, Flood::Resets)
    }

    /// Charges a field section that was decoded only to be refused, in addition to the reset.
    pub(super) fn refused(&mut self, bytes: usize, now: Instant) -> Result<(), Flood> {
        match (bytes / REFUSED_BYTES) as u32 {
            0 => Ok(()),
            more => self.resets.take(more, now, Flood::Resets),
        }
    }

    /// Credits DATA to the client. `fills` if the client's window limited its size: then the size says nothing about
    /// the application.
    pub(super) fn sent_data(&mut self, bytes: usize, fills: bool) {
        self.carried(bytes);
        if !fills {
            self.control.earn(EARNED_BY_FRAME);
        }
    }

    /// Credits a field section to the client.
    pub(super) fn sent_section(&mut self) {
        self.control.earn(EARNED_BY_FRAME);
    }

    /// Credits a complete response.
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

/// A token bucket that can also be credited.
#[derive(Debug)]
struct TokenBucket {
    left: u32,
    /// What it refills to, and what it can hold.
    burst: u32,
    most: u32,
    /// The time in which one token is added.
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
            // A message of ten bytes, and the reply of a gRPC client.
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
        // Responses before the first reset earned nothing.
        limiter.reset_by_peer(now).unwrap_err();
    }
}
