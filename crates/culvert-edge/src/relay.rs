//! Copies bytes between two connections, in both directions, until both are closed.
//!
//! An idle relay holds no buffer: bytes are read into one that all relays of a thread share, and written immediately. Only
//! what the other side does not take is kept, and then nothing more is read. While bytes flow fast between two sockets
//! the kernel moves them ([`Pipe`]).

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::splice::Pipe;

/// Size of the first reads.
const READ_BYTES_MIN: usize = 8 << 10;
/// Size of a read while bytes flow fast.
const READ_BYTES_MAX: usize = 64 << 10;
/// Most bytes to move before other tasks get their turn.
const TURN_BYTES_MAX: usize = 2 << 20;

thread_local! {
    static SHARED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// One side of a relay.
pub(crate) trait RelayEnd: AsyncRead + AsyncWrite + Unpin {
    /// Whether its bytes are those of a socket, so that the kernel may move them.
    fn is_socket(&self) -> bool {
        false
    }

    /// Moves up to `bytes_max` bytes that it has received into a pipe. Only for sockets.
    fn poll_fill(
        &mut self,
        _cx: &mut Context<'_>,
        _pipe: &mut Pipe,
        _bytes_max: usize,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Sends bytes of a pipe. Only for sockets.
    fn poll_empty(&mut self, _cx: &mut Context<'_>, _pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }
}

/// Both directions of a relay.
#[derive(Debug, Default)]
pub(crate) struct Relay {
    there: Direction,
    back: Direction,
}

impl Relay {
    /// Moves bytes until both directions have ended, or one has failed.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        a: &mut impl RelayEnd,
        b: &mut impl RelayEnd,
    ) -> Poll<io::Result<()>> {
        let there = self.there.poll(cx, a, b)?;
        let back = self.back.poll(cx, b, a)?;
        match (there, back) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    }
}

/// One direction of a relay.
#[derive(Debug)]
struct Direction {
    /// Bytes that were read and that the other side has not taken; the first `at` of them it has.
    rest: Vec<u8>,
    at: usize,
    read_bytes: usize,
    pipe: Option<Pipe>,
    is_unflushed: bool,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// The source has ended.
    Flushing,
    ShuttingDown,
    Over,
}

impl Default for Direction {
    fn default() -> Self {
        Self {
            rest: Vec::new(),
            at: 0,
            read_bytes: READ_BYTES_MIN,
            pipe: None,
            is_unflushed: false,
            phase: Phase::Open,
        }
    }
}

impl Direction {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut impl RelayEnd,
        to: &mut impl RelayEnd,
    ) -> Poll<io::Result<()>> {
        let mut moved = 0;
        while self.phase == Phase::Open {
            if moved >= TURN_BYTES_MAX {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let read = match self.pipe.is_some() {
                true => self.poll_spliced(cx, from, to),
                false => self.poll_copied(cx, from, to),
            };
            match read {
                Poll::Ready(Ok(0)) => self.phase = Phase::Flushing,
                Poll::Ready(Ok(bytes)) => moved += bytes,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        if self.phase == Phase::Flushing {
            ready!(Pin::new(&mut *to).poll_flush(cx))?;
            self.phase = Phase::ShuttingDown;
        }
        if self.phase == Phase::ShuttingDown {
            ready!(Pin::new(to).poll_shutdown(cx))?;
            self.phase = Phase::Over;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads, and writes what was read. Returns the number of bytes; 0 means the end.
    fn poll_copied(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut impl RelayEnd,
        to: &mut impl RelayEnd,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_rest(cx, to))?;
        let copied = SHARED.with(|shared| {
            let Ok(mut shared) = shared.try_borrow_mut() else {
                // No relay is polled within another.
                return Poll::Ready(Err(io::ErrorKind::ResourceBusy.into()));
            };
            shared.resize(READ_BYTES_MAX, 0);
            let room = shared.get_mut(..self.read_bytes).unwrap_or_default();
            let mut buf = ReadBuf::new(room);
            if Pin::new(&mut *from).poll_read(cx, &mut buf)?.is_pending() {
                return Poll::Pending;
            }
            self.write(cx, buf.filled(), to)
        });
        match copied {
            Poll::Pending => {
                if self.is_unflushed {
                    ready!(Pin::new(to).poll_flush(cx))?;
                    self.is_unflushed = false;
                }
                Poll::Pending
            }
            copied => copied.map_ok(|bytes| {
                self.adapt(bytes, from.is_socket() && to.is_socket());
                bytes
            }),
        }
    }

    /// Chooses how the next bytes are moved, after a read of `bytes`.
    fn adapt(&mut self, bytes: usize, are_sockets: bool) {
        if !self.rest.is_empty() {
            // The other side is slow.
            self.read_bytes = READ_BYTES_MIN;
        } else if bytes == READ_BYTES_MAX && are_sockets {
            self.pipe = Pipe::take();
        } else if bytes == self.read_bytes {
            self.read_bytes = (bytes * 2).min(READ_BYTES_MAX);
        }
    }

    /// Writes bytes, and keeps those that the other side does not take.
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        to: &mut impl RelayEnd,
    ) -> Poll<io::Result<usize>> {
        let mut left = bytes;
        while !left.is_empty() {
            match Pin::new(&mut *to).poll_write(cx, left)? {
                Poll::Ready(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(count) => {
                    left = left.get(count..).unwrap_or_default();
                    self.is_unflushed = true;
                }
                Poll::Pending => {
                    self.rest = left.to_vec();
                    self.at = 0;
                    break;
                }
            }
        }
        Poll::Ready(Ok(bytes.len()))
    }

    /// Writes what was kept.
    fn poll_rest(&mut self, cx: &mut Context<'_>, to: &mut impl RelayEnd) -> Poll<io::Result<()>> {
        while let Some(left) = self.rest.get(self.at..).filter(|left| !left.is_empty()) {
            let count = ready!(Pin::new(&mut *to).poll_write(cx, left))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.at += count;
            self.is_unflushed = true;
        }
        self.rest = Vec::new();
        self.at = 0;
        Poll::Ready(Ok(()))
    }

    /// As [`Direction::poll_copied`], in the kernel. Gives the pipe back once there is nothing to move.
    fn poll_spliced(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut impl RelayEnd,
        to: &mut impl RelayEnd,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_rest(cx, to))?;
        let Some(pipe) = &mut self.pipe else {
            return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
        };
        while !pipe.is_empty() {
            ready!(to.poll_empty(cx, pipe))?;
            self.is_unflushed = true;
        }
        match from.poll_fill(cx, pipe, usize::MAX) {
            Poll::Ready(Ok(bytes)) if bytes > 0 => Poll::Ready(Ok(bytes)),
            ended => {
                if let Some(pipe) = self.pipe.take() {
                    pipe.give_back();
                }
                // These bytes can only be copied.
                if let Poll::Ready(Err(error)) = &ended
                    && error.kind() == io::ErrorKind::Unsupported
                {
                    return self.poll_copied(cx, from, to);
                }
                if ended.is_pending() && self.is_unflushed {
                    ready!(Pin::new(to).poll_flush(cx))?;
                    self.is_unflushed = false;
                }
                ended
            }
        }
    }
}
