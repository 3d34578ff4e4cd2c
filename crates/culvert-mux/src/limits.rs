//! Limits on the resources that a peer may use, and variations in its protocol.

use std::time::Duration;

use crate::window::WINDOW_BYTES;

/// Maximum number of streams per connection if both ends are culvert.
pub const OURS_STREAMS_MAX: usize = 100_000;

/// The limits of one connection. They may change while it is open, so that an unauthenticated peer gets less than an
/// authenticated one.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of concurrent streams, opened by either side. Rust-based agents count both directions too and
    /// close the whole connection at their 512th stream, so the default is well below that.
    pub streams_max: usize,
    /// Maximum number of streams of the peer that wait to be accepted. Further ones are rejected.
    pub accept_max: usize,
    /// Maximum payload of a sent frame. One stream delays the others by at most this much.
    pub frame_bytes_max: usize,
    /// Queued bytes of one stream above which its writer waits.
    pub stream_queue_bytes_max: usize,
    /// Queued bytes of all streams above which all writers wait.
    pub queue_bytes_max: usize,
    /// Received unread bytes of all streams. From a quarter of it on, streams get less credit. Above it, streams
    /// whose data waits for [`Limits::unread_after`] are reset, those with the most and oldest data first. The
    /// connection is read meanwhile.
    pub held_bytes_max: usize,
    /// Unread bytes including data that arrives within `unread_after`. At this limit, the streams with the most and
    /// oldest data are reset immediately, so that the connection can be read further.
    pub burst_bytes_max: usize,
    /// How long the oldest unread byte of a stream may wait while more than `held_bytes_max` is unread.
    pub unread_after: Duration,
    /// The window of a stream. The protocol begins with [`WINDOW_BYTES`]. A larger window is granted on the first
    /// data, without effect on agents that cap it.
    pub window_bytes_max: u32,
    /// The largest window of a stream whose peer uses all of its window while the reader keeps up: then the distance
    /// is longer than the window. It doubles up to here. Published agents drop credit above a limit of their own, and
    /// would wait for credit that this side believes they have, so only peers that are culvert get more.
    pub window_grows_to: u32,
    /// Maximum number of frames of unknown types. One more ends the connection.
    pub unknown_frames_max: u32,
    /// Number of queued control frames above which no more input is processed, because the peer's frames cause them.
    pub answers_max: usize,
    /// How long a stream that this side reset continues to count as open. Rust-based agents remove a stream only when
    /// its task notices the end, and do not report that. A peer that removes it with the frame needs no such time.
    pub cooling: Duration,
    /// How long a stream that both sides finished continues to count as open. Rust-based agents send their FIN before
    /// the task of the stream releases it, and close the connection if a new stream exceeds their limit.
    pub settling: Duration,
    /// How long a stream that this side has ended in order waits for the peer's FIN before it is reset.
    pub linger: Duration,
    /// Whether to send a FIN before each RST. Readers in Rust-based agents do not wake up on a bare RST, so the
    /// stream and the connection of its service would stay open. If both ends are culvert this is off: if the network
    /// fails between the two frames, the FIN alone looks like a regular end.
    pub fin_before_rst: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams_max: 480,
            accept_max: 64,
            frame_bytes_max: 32 << 10,
            stream_queue_bytes_max: 64 << 10,
            queue_bytes_max: 1 << 20,
            held_bytes_max: 8 << 20,
            burst_bytes_max: 16 << 20,
            unread_after: Duration::from_secs(2),
            window_bytes_max: WINDOW_BYTES,
            window_grows_to: WINDOW_BYTES,
            unknown_frames_max: 16,
            answers_max: 4096,
            cooling: Duration::from_secs(1),
            settling: Duration::from_millis(100),
            linger: Duration::from_secs(2),
            fin_before_rst: true,
        }
    }
}

impl Limits {
    /// For a peer that is culvert: it ends a stream as soon as it reads a reset, so no FIN goes before it, and
    /// streams do not count for longer than they exist.
    pub fn for_ours() -> Self {
        Self {
            streams_max: OURS_STREAMS_MAX,
            accept_max: OURS_STREAMS_MAX,
            cooling: Duration::ZERO,
            settling: Duration::ZERO,
            fin_before_rst: false,
            window_grows_to: 4 << 20,
            ..Self::default()
        }
    }

    /// For an unauthenticated peer: four streams and 64 KiB.
    pub fn unauthenticated() -> Self {
        Self {
            streams_max: 4,
            accept_max: 4,
            held_bytes_max: 64 << 10,
            burst_bytes_max: 64 << 10,
            queue_bytes_max: 64 << 10,
            answers_max: 64,
            ..Self::default()
        }
    }
}
