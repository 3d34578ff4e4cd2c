//! What an HTTP/2 client may cost without asking for anything.
//!
//! The library behind answers every PING, forgets every stream that is reset, and ends few of the
//! conversations that consist of nothing else. A [`Ledger`] walks the headers of frames as they pass
//! in both directions, and says when a client has used up what it may: resets of streams, frames that
//! bring nothing forward, pieces of one field section. It reads nine bytes of a frame, a few more of
//! the frames that carry an error code, and keeps no payload.
//!
//! A pure state machine over bytes; time is an argument. What follows its verdict is the caller's.

use std::time::Duration;

use tokio::time::Instant;

/// CONTINUATION frames of one field section: as many as the library takes for 64 KiB of fields in
/// frames of 16 KiB.
pub(crate) const CONTINUATIONS_MAX: u32 = 5;
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
pub(crate) struct Ledger {
    incoming: Walker,
    outgoing: Walker,
    resets: Bucket,
    idle: Bucket,
    progress: u64,
    continuations: u32,
    last_stream: u32,
    /// The error code of a GOAWAY that left.
    goaway: Option<u32>,
}

impl Ledger {
    /// A connection none of whose bytes have passed.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            // The preface comes before the first frame.
            incoming: Walker::after(24),
            outgoing: Walker::after(0),
            resets: Bucket::new(RESETS, now),
            idle: Bucket::new(IDLE_FRAMES, now),
            progress: 0,
            continuations: 0,
            last_stream: 0,
            goaway: None,
        }
    }

    /// Takes note of bytes from the client.
    pub(crate) fn received(&mut self, bytes: &[u8], now: Instant) -> Result<(), Flood> {
        let mut incoming = std::mem::take(&mut self.incoming);
        let verdict = incoming.walk(bytes, |frame| self.take_in(frame, now));
        self.incoming = incoming;
        verdict
    }

    /// Takes note of bytes to the client.
    pub(crate) fn sent(&mut self, bytes: &[u8], now: Instant) -> Result<(), Flood> {
        let mut outgoing = std::mem::take(&mut self.outgoing);
        let verdict = outgoing.walk(bytes, |frame| self.take_out(frame, now));
        self.outgoing = outgoing;
        verdict
    }

    /// The error code of the GOAWAY that left last, if one did.
    pub(crate) fn goaway(&self) -> Option<u32> {
        self.goaway
    }

    /// A frame that tells the client why it is cut, if a frame can be sent now.
    pub(crate) fn farewell(&self) -> Option<[u8; 17]> {
        const ENHANCE_YOUR_CALM: u32 = 11;
        if !self.outgoing.is_between() {
            return None;
        }
        let mut frame = [
            0,
            0,
            8,
            Frame::GOAWAY,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
        ];
        let (_, payload) = frame.split_at_mut(9);
        let (stream, code) = payload.split_at_mut(4);
        stream.copy_from_slice(&self.last_stream.to_be_bytes());
        code.copy_from_slice(&ENHANCE_YOUR_CALM.to_be_bytes());
        Some(frame)
    }

    fn take_in(&mut self, frame: Frame, now: Instant) -> Result<(), Flood> {
        if frame.kind != Frame::CONTINUATION {
            self.continuations = 0;
        }
        match frame.kind {
            Frame::DATA if frame.length > 0 => self.progressed(frame.length),
            // The last DATA of a stream may be empty, and comes once.
            Frame::DATA if frame.flags & Frame::END_STREAM != 0 => {}
            Frame::HEADERS => {
                if frame.stream > self.last_stream {
                    self.last_stream = frame.stream;
                    // A request may come with a frame about its priority.
                    self.idle.give();
                }
            }
            Frame::RST_STREAM => self.resets.take(now, Flood::Resets)?,
            Frame::CONTINUATION => {
                self.continuations += 1;
                if self.continuations > CONTINUATIONS_MAX {
                    return Err(Flood::Continuations);
                }
                if frame.length == 0 {
                    self.idle.take(now, Flood::IdleFrames)?;
                }
            }
            _ => self.idle.take(now, Flood::IdleFrames)?,
        }
        Ok(())
    }

    fn take_out(&mut self, frame: Frame, now: Instant) -> Result<(), Flood> {
        match frame.kind {
            Frame::DATA => self.progressed(frame.length),
            Frame::RST_STREAM if is_their_error(frame.code) => {
                self.resets.take(now, Flood::Resets)?;
            }
            Frame::GOAWAY => self.goaway = Some(frame.code),
            _ => {}
        }
        Ok(())
    }

    fn progressed(&mut self, bytes: u32) {
        self.progress += u64::from(bytes);
        for _ in 0..self.progress / PROGRESS_BYTES {
            if !self.idle.give() {
                break;
            }
        }
        self.progress %= PROGRESS_BYTES;
    }
}

/// Whether an error code of ours says that the client did something wrong.
fn is_their_error(code: u32) -> bool {
    // Not: no error, an internal one, a cancelled stream.
    !matches!(code, 0 | 2 | 8)
}

/// What is looked at of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    kind: u8,
    flags: u8,
    length: u32,
    stream: u32,
    /// Of RST_STREAM and GOAWAY.
    code: u32,
}

impl Frame {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const GOAWAY: u8 = 7;
    const CONTINUATION: u8 = 9;
    const END_STREAM: u8 = 1;
}

/// Walks from frame to frame over bytes that arrive in any pieces.
#[derive(Debug, Default)]
struct Walker {
    /// The beginning of a frame, up to the last byte that is looked at.
    held: [u8; 17],
    have: usize,
    /// Bytes to pass over before the next frame.
    skip: usize,
}

impl Walker {
    fn after(skip: usize) -> Self {
        Self {
            skip,
            ..Self::default()
        }
    }

    /// Whether the bytes so far end with a frame.
    fn is_between(&self) -> bool {
        self.have == 0 && self.skip == 0
    }

    fn walk(
        &mut self,
        mut bytes: &[u8],
        mut see: impl FnMut(Frame) -> Result<(), Flood>,
    ) -> Result<(), Flood> {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = bytes.get(skipped..).unwrap_or_default();
            if bytes.is_empty() {
                return Ok(());
            }
            let wanted = self.wanted();
            let taken = (wanted - self.have).min(bytes.len());
            let (now, rest) = bytes.split_at(taken);
            if let Some(room) = self.held.get_mut(self.have..self.have + taken) {
                room.copy_from_slice(now);
            }
            self.have += taken;
            bytes = rest;
            if self.have == self.wanted() {
                let frame = self.frame();
                self.skip = (frame.length as usize + 9).saturating_sub(self.have);
                self.have = 0;
                see(frame)?;
            }
        }
    }

    /// How many of the frame's bytes are looked at, as far as is known.
    fn wanted(&self) -> usize {
        let length = self.length();
        match self.held[3] {
            _ if self.have < 9 => 9,
            Frame::RST_STREAM if length == 4 => 13,
            Frame::GOAWAY if length >= 8 => 17,
            _ => 9,
        }
    }

    fn length(&self) -> u32 {
        u32::from_be_bytes([0, self.held[0], self.held[1], self.held[2]])
    }

    fn frame(&self) -> Frame {
        let held = &self.held;
        let code = match self.have {
            13 => [held[9], held[10], held[11], held[12]],
            17 => [held[13], held[14], held[15], held[16]],
            _ => [0; 4],
        };
        Frame {
            kind: held[3],
            flags: held[4],
            length: self.length(),
            stream: u32::from_be_bytes([held[5] & 0x7F, held[6], held[7], held[8]]),
            code: u32::from_be_bytes(code),
        }
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
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut bytes = vec![length[1], length[2], length[3], kind, flags];
        bytes.extend_from_slice(&stream.to_be_bytes());
        bytes.extend_from_slice(payload);
        bytes
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
        ledger.received(&[0; 24], now).unwrap();
        let update = frame(8, 0, 0, &[0, 0, 1, 0]);
        for _ in 0..1_000 {
            ledger.sent(&frame(0, 0, 1, &[0; 256]), now).unwrap();
            ledger.received(&update, now).unwrap();
        }
        // The first data found nothing to make up for.
        for _ in 1..IDLE_FRAMES.0 {
            ledger.received(&update, now).unwrap();
        }
        assert_eq!(ledger.received(&update, now), Err(Flood::IdleFrames));
    }

    #[test]
    fn only_resets_for_their_errors_count_among_ours() {
        let now = Instant::now();
        let mut ledger = Ledger::new(now);
        for code in [0u32, 2, 8] {
            for _ in 0..1_000 {
                let reset = frame(3, 0, 1, &code.to_be_bytes());
                ledger.sent(&reset, now).unwrap();
            }
        }
        let reset = frame(3, 0, 1, &1u32.to_be_bytes());
        for _ in 0..RESETS.0 {
            ledger.sent(&reset, now).unwrap();
        }
        assert_eq!(ledger.sent(&reset, now), Err(Flood::Resets));
    }

    #[test]
    fn a_farewell_waits_for_the_end_of_a_frame() {
        let now = Instant::now();
        let mut ledger = Ledger::new(now);
        assert!(ledger.farewell().is_some());
        let data = frame(0, 0, 1, b"abc");
        let (first, second) = data.split_at(10);
        ledger.sent(first, now).unwrap();
        assert_eq!(ledger.farewell(), None);
        ledger.sent(second, now).unwrap();
        let bytes = ledger.farewell().unwrap();
        ledger.sent(&bytes, now).unwrap();
        assert_eq!(ledger.goaway(), Some(11));
    }

    proptest! {
        #[test]
        fn frames_are_found_however_they_arrive(
            frames in proptest::collection::vec((0u8..12, 0u8..8, 0u32..9, 0usize..40), 0..20),
            cut in 1usize..30,
        ) {
            let bytes: Vec<u8> = frames
                .iter()
                .flat_map(|&(kind, flags, stream, length)| frame(kind, flags, stream, &vec![7; length]))
                .collect();
            let mut whole = Vec::new();
            let mut walker = Walker::after(0);
            walker.walk(&bytes, |frame| { whole.push(frame); Ok(()) }).unwrap();
            prop_assert!(walker.is_between());
            prop_assert_eq!(whole.len(), frames.len());
            let mut pieces = Vec::new();
            let mut walker = Walker::after(0);
            for piece in bytes.chunks(cut) {
                walker.walk(piece, |frame| { pieces.push(frame); Ok(()) }).unwrap();
            }
            prop_assert_eq!(whole, pieces);
        }

        #[test]
        fn any_bytes_are_walked(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let now = Instant::now();
            let mut ledger = Ledger::new(now);
            let _verdict = ledger.received(&bytes, now);
            let _verdict = ledger.sent(&bytes, now);
        }
    }
}
