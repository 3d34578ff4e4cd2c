//! Follows the frames of a connection that others speak, to know whether a request is open on it.

use std::collections::BTreeMap;

use super::frame::{self, END_STREAM, HEAD_BYTES, Head, PREFACE, RST_STREAM, Reason};

/// Maximum number of open streams. A connection with more is not followed any further.
const FOLLOWED_STREAMS_MAX: usize = 4096;

/// Follows both directions of one connection.
#[derive(Debug, Default)]
pub struct Follower {
    from_client: Direction,
    from_server: Direction,
    /// The open streams, each with what has ended of it.
    open: BTreeMap<u32, Ended>,
    /// The last stream that the client opened.
    last: u32,
    preface: usize,
    is_lost: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ended {
    from_client: bool,
    from_server: bool,
}

/// The position in the frames of one direction.
#[derive(Debug, Default)]
struct Direction {
    head: [u8; HEAD_BYTES],
    filled: usize,
    /// Bytes left of the payload.
    left: usize,
}

impl Direction {
    fn is_between_frames(&self) -> bool {
        self.filled == 0 && self.left == 0
    }

    /// Skips payload, and returns the head of the next frame once it is complete.
    fn next(&mut self, bytes: &mut &[u8]) -> Option<Head> {
        let skipped = self.left.min(bytes.len());
        self.left -= skipped;
        *bytes = &bytes[skipped..];
        let taken = (HEAD_BYTES - self.filled).min(bytes.len());
        let (head, rest) = bytes.split_at(taken);
        self.head[self.filled..self.filled + taken].copy_from_slice(head);
        *bytes = rest;
        self.filled += taken;
        if self.filled < HEAD_BYTES {
            return None;
        }
        let head = Head::read(&self.head)?;
        (self.filled, self.left) = (0, head.length);
        Some(head)
    }
}

impl Follower {
    /// Processes bytes from the client.
    pub fn client_sent(&mut self, mut bytes: &[u8]) {
        let rest_of_preface = &PREFACE[self.preface..];
        let length = rest_of_preface.len().min(bytes.len());
        self.is_lost |= bytes[..length] != rest_of_preface[..length];
        self.preface += length;
        bytes = &bytes[length..];
        while !self.is_lost
            && let Some(head) = self.from_client.next(&mut bytes)
        {
            if head.kind == frame::HEADERS && head.stream > self.last {
                self.last = head.stream;
                self.open.insert(head.stream, Ended::default());
                self.is_lost |= self.open.len() > FOLLOWED_STREAMS_MAX;
            }
            self.see(head, |ended| ended.from_client = true);
        }
    }

    /// Processes bytes from the server.
    pub fn server_sent(&mut self, mut bytes: &[u8]) {
        while !self.is_lost
            && let Some(head) = self.from_server.next(&mut bytes)
        {
            self.see(head, |ended| ended.from_server = true);
        }
    }

    fn see(&mut self, head: Head, end: impl FnOnce(&mut Ended)) {
        let ends = matches!(head.kind, frame::DATA | frame::HEADERS) && head.has(END_STREAM);
        if ends && let Some(ended) = self.open.get_mut(&head.stream) {
            end(ended);
            if ended.from_client && ended.from_server {
                self.open.remove(&head.stream);
            }
        }
        if head.kind == RST_STREAM {
            self.open.remove(&head.stream);
        }
    }

    /// Whether no request is open and every frame is complete. `None` if the connection cannot be followed.
    pub fn is_idle(&self) -> Option<bool> {
        let is_between = self.preface == PREFACE.len()
            && self.from_client.is_between_frames()
            && self.from_server.is_between_frames();
        (!self.is_lost).then_some(is_between && self.open.is_empty())
    }

    /// The frame by which the server of an idle connection announces that it takes no further request.
    pub fn goodbye(&self) -> Vec<u8> {
        let mut goodbye = Vec::new();
        frame::begin(&mut goodbye, 8, frame::GOAWAY, 0, 0);
        goodbye.extend_from_slice(&self.last.to_be_bytes());
        goodbye.extend_from_slice(&Reason::NO_ERROR.0.to_be_bytes());
        goodbye
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_frame(length: usize, kind: u8, flags: u8, stream: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame::begin(&mut bytes, length, kind, flags, stream);
        bytes.resize(HEAD_BYTES + length, 0);
        bytes
    }

    #[test]
    fn a_connection_is_idle_between_requests_however_its_bytes_are_cut() {
        let from_client = [
            PREFACE.to_vec(),
            a_frame(0, frame::SETTINGS, 0, 0),
            a_frame(30, frame::HEADERS, 0, 1),
            a_frame(9, frame::DATA, END_STREAM, 1),
        ]
        .concat();
        let from_server = [
            a_frame(6, frame::SETTINGS, 0, 0),
            a_frame(10, frame::HEADERS, 0, 1),
            a_frame(100, frame::DATA, 0, 1),
            a_frame(10, frame::HEADERS, END_STREAM, 1),
        ]
        .concat();
        for piece in [1, 2, 7, 1000] {
            let mut follower = Follower::default();
            assert_eq!(follower.is_idle(), Some(false), "the preface is missing");
            for bytes in from_client.chunks(piece) {
                follower.client_sent(bytes);
            }
            for bytes in from_server.chunks(piece) {
                assert_eq!(follower.is_idle(), Some(false));
                follower.server_sent(bytes);
            }
            assert_eq!(follower.is_idle(), Some(true));
            assert_eq!(follower.goodbye()[9..], [0, 0, 0, 1, 0, 0, 0, 0]);
            follower.client_sent(&a_frame(5, frame::HEADERS, END_STREAM, 3));
            assert_eq!(follower.is_idle(), Some(false));
            follower.server_sent(&a_frame(4, RST_STREAM, 0, 3));
            assert_eq!(follower.is_idle(), Some(true));
        }
    }

    #[test]
    fn other_protocols_and_too_many_streams_are_not_followed() {
        let mut follower = Follower::default();
        follower.client_sent(b"PROXY TCP4 192.0.2.7 192.0.2.1 1 2\r\n");
        assert_eq!(follower.is_idle(), None);
        let mut follower = Follower::default();
        follower.client_sent(PREFACE);
        for nth in 0..=FOLLOWED_STREAMS_MAX as u32 {
            assert_eq!(follower.is_idle(), Some(nth == 0));
            follower.client_sent(&a_frame(1, frame::HEADERS, END_STREAM, 2 * nth + 1));
        }
        assert_eq!(follower.is_idle(), None);
    }
}
