//! How much a peer may make this side hold, and what it needs to be told.

use std::time::Duration;

use crate::WINDOW_BYTES;

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
    /// Bytes received and not yet read, of all streams. From a quarter of it on, streams are given
    /// less credit; at the whole nothing more is taken from the connection.
    pub held_bytes_max: usize,
    /// At the limit above, a stream unread for this long is reset.
    pub unread_after: Duration,
    /// What a stream may receive ahead of its reader. The protocol begins with [`WINDOW_BYTES`];
    /// more is granted on the first data, and has no effect on agents that cap it.
    pub window_bytes_max: u32,
    /// Frames of unknown types that are passed over; one more ends the connection.
    pub unknown_frames_max: u32,
    /// Frames of our own, other than DATA, that may wait to be sent; then nothing more is taken
    /// from the connection, because it is the peer's frames that cause them.
    pub answers_max: usize,
    /// How long a stream that this side reset goes on counting as open: agents let go of it a
    /// little after they were told.
    pub cooling: Duration,
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
            unread_after: Duration::from_secs(10),
            window_bytes_max: WINDOW_BYTES,
            unknown_frames_max: 16,
            answers_max: 4096,
            cooling: Duration::from_secs(1),
            fin_before_rst: true,
        }
    }
}

impl Limits {
    /// For a peer that has not said who it is: four streams and 64 KiB.
    pub fn for_strangers() -> Self {
        Self {
            streams_max: 4,
            accept_max: 4,
            held_bytes_max: 64 << 10,
            queue_bytes_max: 64 << 10,
            answers_max: 64,
            ..Self::default()
        }
    }
}
