//! What an HTTP/2 client may cost without asking for anything.
//!
//! A client is to be answered for every PING, and may give up every stream that it opens; nothing in the
//! protocol ends a conversation that consists of nothing else. A [`Ledger`] takes note of frames as they
//! pass in both directions, and says when a client has used up what it may: resets of streams, frames
//! that bring nothing forward, pieces of one field section.
//!
//! A pure state machine; time is an argument. What follows its verdict is the caller's.

use std::time::Duration;

use tokio::time::Instant;

use crate::http2::frame::{self, Head, Reason};

/// CONTINUATION frames of one field section.
pub(crate) const CONTINUATIONS_MAX: u32 = 8;
/// Streams reset by the client, or by us for its errors: at once, and a second.
pub(crate) const RESETS: (u32, u32) = (100, 20);
/// Frames without progress: at once, and a second.
pub(crate) const IDLE_FRAMES: (u32, u32) = (200, 50);
/// DATA bytes, either way, that make up for a frame without progress.
const PROGRESS_BYTES: u64 = 256;

/// What a client did too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flood {
    /// Streams reset, by itself or for its errors.
    Resets,
    /// Frames that bring nothing forward.
    IdleFrames,
    /// Pieces of one field section.
    Continuations,
}

/// Frames of one HTTP/2 connection, as a server sees them.
#[derive(Debug)]
pub(super) struct Ledger {
    resets: Bucket,
    idle: Bucket,
    progress: u64,
    continuations: u32,
}

impl Ledger {
    /// A connection none of whose frames have passed.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            resets: Bucket::new(RESETS, now),
            idle: Bucket::new(IDLE_FRAMES, now),
            progress: 0,
            continuations: 0,
        }
    }

    /// Takes note of a frame from the client that carries so many bytes without padding; `is_new` where
    /// it opens a stream.
    pub(super) fn received(
        &mut self,
        frame: &Head,
        carried: usize,
        is_new: bool,
        now: Instant,
    ) -> Result<(), Flood> {
        if frame.kind != frame::CONTINUATION {
            self.continuations = 0;
        }
        match frame.kind {
            frame::DATA if carried > 0 => self.progressed(carried),
            // The last DATA of a stream may be empty, and comes once.
            frame::DATA if frame.has(frame::END_STREAM) => {}
            frame::HEADERS => {
                if is_new {
                    // A request may come with a frame about its priority.
                    self.idle.give();
                }
            }
            frame::RST_STREAM => self.resets.take(now, Flood::Resets)?,
            frame::CONTINUATION => {
                self.continuations += 1;
                if self.continuations > CONTINUATIONS_MAX {
                    return Err(Flood::Continuations);
                }
                if carried == 0 {
                    self.idle.take(now, Flood::IdleFrames)?;
                }
            }
            _ => self.idle.take(now, Flood::IdleFrames)?,
        }
        Ok(())
    }

    /// Takes note of DATA to the client.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.progressed(bytes);
    }

    /// Takes note of a stream that we end before its answer does.
    pub(super) fn reset(&mut self, reason: Reason, now: Instant) -> Result<(), Flood> {
        let is_ours = [Reason::NO_ERROR, Reason::INTERNAL_ERROR, Reason::CANCEL].contains(&reason);
        if is_ours { Ok(()) } else { self.refused(now) }
    }

    /// Takes note of a request that is refused for what the client did wrong.
    pub(super) fn refused(&mut self, now: Instant) -> Result<(), Flood> {
        self.resets.take(now, Flood::Resets)
    }

    fn progressed(&mut self, bytes: usize) {
        self.progress += bytes as u64;
        for _ in 0..self.progress / PROGRESS_BYTES {
            if !self.idle.give() {
                break;
            }
        }
        self.progress %= PROGRESS_BYTES;
    }
}

/// So many at once, and so many a second.
#[derive(Debug)]
struct Bucket {
    left: u32,
    burst: u32,
    /// How long it takes until there is one more.
    every: Duration,
    at: Instant,
}

impl Bucket {
    fn new((burst, per_second): (u32, u32), now: Instant) -> Self {
        Self {
            left: burst,
            burst,
            every: Duration::from_secs(1) / per_second,
            at: now,
        }
    }

    fn take(&mut self, now: Instant, flood: Flood) -> Result<(), Flood> {
        if self.left == 0 {
            let more = now.saturating_duration_since(self.at).as_nanos() / self.every.as_nanos();
            self.left = u32::try_from(more).map_or(self.burst, |more| more.min(self.burst));
            self.at = now;
        }
        self.left = self.left.checked_sub(1).ok_or(flood)?;
        Ok(())
    }

    /// One more; false when it is full.
    fn give(&mut self) -> bool {
        let has_room = self.left < self.burst;
        self.left += u32::from(has_room);
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, length: usize) -> Head {
        Head {
            length,
            kind,
            flags: 0,
            stream: 1,
        }
    }

    #[test]
    fn a_bucket_fills_again() {
        let start = Instant::now();
        let mut bucket = Bucket::new((2, 10), start);
        let mut take = |after: u64| {
            bucket
                .take(start + Duration::from_millis(after), Flood::Resets)
                .is_ok()
        };
        assert!(take(0) && take(0));
        assert!(take(150), "one has come back");
        assert!(!take(200));
        assert!(take(100_000) && take(100_000));
        assert!(!take(100_000));
    }

    #[test]
    fn data_makes_up_for_frames_without() {
        let now = Instant::now();
        let mut ledger = Ledger::new(now);
        let update = frame(frame::WINDOW_UPDATE, 4);
        for _ in 0..1_000 {
            ledger.sent(256);
            ledger.received(&update, 4, false, now).unwrap();
        }
        // The first data found nothing to make up for.
        for _ in 1..IDLE_FRAMES.0 {
            ledger.received(&update, 4, false, now).unwrap();
        }
        assert_eq!(
            ledger.received(&update, 4, false, now),
            Err(Flood::IdleFrames)
        );
    }

    #[test]
    fn only_resets_for_their_errors_count_among_ours() {
        let now = Instant::now();
        let mut ledger = Ledger::new(now);
        for reason in [Reason::NO_ERROR, Reason::INTERNAL_ERROR, Reason::CANCEL] {
            for _ in 0..1_000 {
                ledger.reset(reason, now).unwrap();
            }
        }
        for _ in 0..RESETS.0 {
            ledger.reset(Reason::PROTOCOL_ERROR, now).unwrap();
        }
        assert_eq!(
            ledger.reset(Reason::PROTOCOL_ERROR, now),
            Err(Flood::Resets)
        );
    }
}
