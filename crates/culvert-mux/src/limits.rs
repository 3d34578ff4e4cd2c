//! How much a peer may make this side hold, and what it needs to be told.

use std::time::Duration;

use crate::WINDOW_BYTES;

/// Streams of one connection between two ends of ours.
pub const OURS_STREAMS_MAX: usize = 100_000;

/// Limits of one connection. They may be changed while it lives, so that a stranger gets less than
/// a peer that has said who it is.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Streams at once, opened by either side. Rust-based agents count both directions too and drop
    /// the whole connection at their 512th, hence the distance.
    pub streams_max: usize,
    /// Streams the peer opened that nobody has taken yet; one more is refused.
    pub accept_max: usize,
    /// Longest payload of a frame sent. One stream delays the others by at most this much.
    pub frame_bytes_max: usize,
    /// Bytes of one stream that wait to be sent; then its writer waits.
    pub stream_queue_bytes_max: usize,
    /// Bytes of all streams that wait to be sent; then all writers wait.
    pub queue_bytes_max: usize,
    /// Bytes received and not yet read, of all streams. From a quarter of it on, streams get less
    /// credit. Above it, streams whose bytes wait for [`Limits::unread_after`] are reset, those that
    /// hold most for longest first. The connection is read all the while.
    pub held_bytes_max: usize,
    /// The same with what may arrive before `unread_after` has passed. At this limit the streams
    /// that hold most for longest are reset at once, so that the connection is read on.
    pub burst_bytes_max: usize,
    /// How long the oldest unread byte of a stream may wait while more than `held_bytes_max` is held.
    pub unread_after: Duration,
    /// What a stream may receive ahead of its reader. The protocol begins with [`WINDOW_BYTES`];
    /// more is granted on the first data, and has no effect on agents that cap it.
    pub window_bytes_max: u32,
    /// Frames of unknown types that are passed over; one more ends the connection.
    pub unknown_frames_max: u32,
    /// Frames of our own, other than DATA, that may wait to be sent; then nothing more is taken
    /// from the connection, because it is the peer's frames that cause them.
    pub answers_max: usize,
    /// How long a stream that this side reset goes on counting as open. Rust-based agents remove a
    /// stream from their table only when the task behind it has noticed the end, and they send
    /// nothing then. A peer that removes it with the frame needs no such time.
    pub cooling: Duration,
    /// The same for a stream that both sides finished. Rust-based agents send their FIN before the task behind
    /// the stream lets go of it, and end the connection when a new stream finds no place.
    pub settling: Duration,
    /// How long a stream that this side has ended in good order waits for the peer's FIN; then it
    /// is reset.
    pub linger: Duration,
    /// Whether a FIN goes before each RST. Readers in Rust-based agents sleep through a bare RST, so
    /// the stream and the connection behind it would stay. Between two ends of ours it is off: if
    /// the network ends between the two frames, the first alone looks like a clean end.
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
    /// For a peer that is culvert itself: a reset ends a stream there as soon as the frame is read,
    /// so no FIN goes before it and no stream counts for longer than it exists.
    pub fn for_ours() -> Self {
        Self {
            streams_max: OURS_STREAMS_MAX,
            accept_max: OURS_STREAMS_MAX,
            cooling: Duration::ZERO,
            settling: Duration::ZERO,
            fin_before_rst: false,
            ..Self::default()
        }
    }

    /// For a peer that has not said who it is: four streams and 64 KiB.
    pub fn for_strangers() -> Self {
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
