//! Flow control: how many bytes may be in transit on a stream. Both windows are unsigned and use checked arithmetic
//! only, so neither can become negative.

use std::time::{Duration, Instant};

use crate::frame::INCREMENT_MAX;

/// The initial window in either direction.
pub const WINDOW_BYTES: u32 = 256 << 10;

/// A shorter pause is no distance, and no reason for a larger window.
const ROUND_TRIP_MIN: Duration = Duration::from_millis(1);

/// The number of bytes that this side may still send on a stream.
#[derive(Debug)]
pub(crate) struct SendWindow(u32);

impl SendWindow {
    pub(crate) const fn new() -> Self {
        Self(WINDOW_BYTES)
    }

    pub(crate) const fn available(&self) -> usize {
        self.0 as usize
    }

    /// Uses `bytes` of the window.
    pub(crate) fn spend(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        debug_assert!(bytes <= self.0, "beyond the window");
        self.0 = self.0.saturating_sub(bytes);
    }

    /// Adds an increment. `false` if the sum exceeds the maximum of the protocol.
    pub(crate) fn grow(&mut self, increment: u32) -> bool {
        match self.0.checked_add(increment) {
            Some(sum) if sum <= INCREMENT_MAX => {
                self.0 = sum;
                true
            }
            _ => false,
        }
    }
}

/// The number of bytes that the peer may still send on a stream.
#[derive(Debug)]
pub(crate) struct ReceiveWindow {
    /// Bytes that no frame has used yet.
    credit: u32,
    /// Bytes that a frame's head announced and that have not arrived yet.
    arriving: u32,
    /// When the last frame arrived.
    frame_at: Instant,
    /// The oldest credit that the peer has not used yet, if there is any.
    granted: Option<Granted>,
}

/// Credit on its way to the peer.
#[derive(Debug)]
struct Granted {
    at: Instant,
    /// Bytes that the peer may still send without it.
    before: u32,
}

impl ReceiveWindow {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            credit: WINDOW_BYTES,
            arriving: 0,
            frame_at: now,
            granted: None,
        }
    }

    /// Records a frame. Whether the peer had to wait for the credit that it uses with this frame: if its frames paused
    /// for half of the time since the credit was granted, and the reader was not what delayed it. That time is at
    /// least a round trip.
    pub(crate) fn was_too_small(&mut self, length: usize, now: Instant) -> bool {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let before = std::mem::replace(&mut self.frame_at, now);
        let Some(granted) = &mut self.granted else {
            return false;
        };
        if length <= granted.before {
            granted.before -= length;
            return false;
        }
        let at = granted.at;
        self.granted = None;
        let span = now.saturating_duration_since(at);
        let paused = now.saturating_duration_since(before.max(at));
        let reading = at.saturating_duration_since(before);
        span >= ROUND_TRIP_MIN && 2 * paused >= span && 4 * reading <= span
    }

    /// Charges a whole frame by its head. `false` if it exceeds the peer's credit.
    pub(crate) fn charge(&mut self, length: usize) -> bool {
        let Ok(length) = u32::try_from(length) else {
            return false;
        };
        match self.credit.checked_sub(length) {
            Some(rest) => {
                self.credit = rest;
                self.arriving += length;
                true
            }
            None => false,
        }
    }

    /// Records the arrival of a part of a charged frame.
    pub(crate) fn arrived(&mut self, length: usize) {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        debug_assert!(length <= self.arriving);
        self.arriving = self.arriving.saturating_sub(length);
    }

    /// The increment to send when `unread` bytes wait for the reader and the peer may be at most `target` bytes
    /// ahead. `None` if it would be less than half of the target.
    pub(crate) fn due(&mut self, unread: usize, target: u32, now: Instant) -> Option<u32> {
        let unread = u32::try_from(unread).unwrap_or(u32::MAX);
        let ahead = self
            .credit
            .saturating_add(self.arriving)
            .saturating_add(unread);
        let room = target.saturating_sub(ahead);
        if room == 0 || room < target / 2 {
            return None;
        }
        self.granted.get_or_insert(Granted {
            at: now,
            before: self.credit,
        });
        self.credit += room;
        Some(room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_returned_when_half_of_it_was_read() {
        let mut window = ReceiveWindow::new(Instant::now());
        assert_eq!(
            window.due(0, WINDOW_BYTES, Instant::now()),
            None,
            "all of it is out"
        );
        assert!(window.charge(200_000));
        window.arrived(150_000);
        assert_eq!(
            window.due(150_000, WINDOW_BYTES, Instant::now()),
            None,
            "nothing was read"
        );
        window.arrived(50_000);
        assert_eq!(
            window.due(100_000, WINDOW_BYTES, Instant::now()),
            None,
            "less than half"
        );
        assert_eq!(
            window.due(60_000, WINDOW_BYTES, Instant::now()),
            Some(140_000)
        );
        assert_eq!(window.due(60_000, WINDOW_BYTES, Instant::now()), None);
        assert!(!window.charge(WINDOW_BYTES as usize - 60_000 + 1));
        assert!(window.charge(WINDOW_BYTES as usize - 60_000));
        assert!(!window.charge(1));
    }

    #[test]
    fn a_smaller_target_holds_credit_back_and_a_larger_one_adds_to_it() {
        let mut window = ReceiveWindow::new(Instant::now());
        assert!(window.charge(250_000));
        window.arrived(250_000);
        assert_eq!(
            window.due(0, 16 << 10, Instant::now()),
            None,
            "12,144 bytes are still out"
        );
        assert!(window.charge(8_000));
        window.arrived(8_000);
        assert_eq!(
            window.due(0, 16 << 10, Instant::now()),
            Some((16 << 10) - 4_144)
        );
        assert_eq!(
            window.due(0, 1 << 20, Instant::now()),
            Some((1 << 20) - (16 << 10))
        );
    }

    #[test]
    fn a_send_window_grows_to_what_the_protocol_can_say() {
        let mut window = SendWindow::new();
        window.spend(WINDOW_BYTES as usize);
        assert_eq!(window.available(), 0);
        assert!(window.grow(INCREMENT_MAX));
        assert!(!window.grow(1));
        assert_eq!(window.available(), INCREMENT_MAX as usize);
    }

    #[test]
    fn a_window_is_too_small_if_the_peer_waits_a_round_trip_for_credit() {
        let began = Instant::now();
        let at = |millis| began + Duration::from_millis(millis);
        // Frames of 64 KiB until the window is used up, credit at `granted`, and the next frame.
        let check = |frames: [u64; 4], granted: u64, next: u64| {
            let mut window = ReceiveWindow::new(began);
            for frame in frames {
                assert!(window.charge(64 << 10));
                assert!(!window.was_too_small(64 << 10, at(frame)));
                window.arrived(64 << 10);
                if frame == granted {
                    window.due(0, WINDOW_BYTES, at(granted));
                }
            }
            window.due(0, WINDOW_BYTES, at(granted));
            assert!(window.charge(64 << 10));
            window.was_too_small(64 << 10, at(next))
        };
        assert!(check([0, 1, 2, 3], 1, 41), "it waits for a round trip");
        assert!(check([0, 1, 2, 3], 5, 45), "the reader was a little late");
        assert!(!check([0, 1, 2, 3], 1, 4), "it goes on");
        assert!(!check([0, 20, 40, 60], 20, 65), "it is slow");
        assert!(!check([0, 1, 2, 3], 100, 140), "the reader was slow");
        assert!(!check([0, 0, 0, 0], 0, 0), "there is no distance");
    }
}
