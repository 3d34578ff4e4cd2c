//! Copies bytes between two connections, in both directions, until both are closed.
//!
//! An idle relay holds no buffer: bytes are read into one that all relays of a thread share, and written immediately. Only
//! what the other side does not take is kept, and then nothing more is read. While bytes flow fast between two sockets
//! the kernel moves them ([`Pipe`]), until one side stalls. Bytes of an agent are in memory already, and are written from there.

pub(crate) mod counted_upstream;
pub mod splice;
pub(crate) mod timed_relay;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use crate::relay::splice::Pipe;
use crate::turn::yield_turn;

/// Size of the first reads.
const READ_BYTES_MIN: usize = 8 << 10;
/// Size of a read while bytes flow fast.
const READ_BYTES_MAX: usize = 64 << 10;
/// Most bytes, and pieces in memory, of one write.
const PIECES_BYTES_MAX: usize = 128 << 10;
const PIECES_MAX: usize = 16;
/// Most bytes to move before other tasks get their turn.
const TURN_BYTES_MAX: usize = 2 << 20;

thread_local! {
    static SHARED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// One side of a relay.
pub trait RelayEnd: AsyncRead + AsyncWrite + Unpin {
    /// Whether the bytes that arrive are in memory, so that [`RelayEnd::poll_piece`] reads them.
    fn has_pieces(&self) -> bool {
        false
    }

    /// Reads at most `bytes_max` bytes without copying them. Empty at the end, and then again.
    fn poll_piece(&mut self, _cx: &mut Context<'_>, _bytes_max: usize) -> Poll<io::Result<Bytes>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

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

/// A decrypted stream is no socket.
impl<S: AsyncRead + AsyncWrite + Unpin> RelayEnd for TlsStream<S> {}

/// The client whose bytes a relay moves. They count as its own.
pub trait RelayClient {
    /// Memory that counts as the client's until it is dropped.
    type HeldMemory: fmt::Debug;

    /// The source whose share of pipes the relay uses.
    fn source(&self) -> IpAddr;

    /// Counts this number of bytes as the client's memory.
    fn hold(self: &Arc<Self>, bytes: usize) -> Self::HeldMemory;

    /// The client reads too slowly, and its relay ends.
    fn too_slow(&self);
}

/// Both directions of a relay.
#[derive(Debug)]
pub struct Relay<C: RelayClient> {
    there: Direction<C>,
    back: Direction<C>,
}

impl<C: RelayClient> Relay<C> {
    /// A relay for this client. Without one, the kernel moves no bytes.
    pub fn new(client: Option<&Arc<C>>) -> Self {
        Self {
            there: Direction::new(client),
            back: Direction::new(client),
        }
    }

    /// Moves bytes until both directions have ended, or one has failed.
    pub fn poll(
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
struct Direction<C: RelayClient> {
    /// Bytes that were read and that the other side has not taken.
    rest: VecDeque<Bytes>,
    /// Counts the bytes that moved from a pipe to memory because one side stalled.
    held: Option<C::HeldMemory>,
    read_bytes: usize,
    pipe: Option<Pipe>,
    client: Option<Arc<C>>,
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

impl<C: RelayClient> Direction<C> {
    fn new(client: Option<&Arc<C>>) -> Self {
        Self {
            rest: VecDeque::new(),
            held: None,
            read_bytes: READ_BYTES_MIN,
            pipe: None,
            client: client.map(Arc::clone),
            is_unflushed: false,
            phase: Phase::Open,
        }
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut impl RelayEnd,
        to: &mut impl RelayEnd,
    ) -> Poll<io::Result<()>> {
        let mut moved = 0;
        while self.phase == Phase::Open {
            if moved >= TURN_BYTES_MAX {
                return yield_turn(cx);
            }
            let read = if self.pipe.is_some() {
                self.poll_spliced(cx, from, to)
            } else if from.has_pieces() {
                self.poll_passed(cx, from, to)
            } else {
                self.poll_copied(cx, from, to)
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
            let most = self.read_bytes.min(READ_BYTES_MAX);
            let room = shared.get_mut(..most).unwrap_or_default();
            let mut buf = ReadBuf::new(room);
            if Pin::new(&mut *from).poll_read(cx, &mut buf)?.is_pending() {
                return Poll::Pending;
            }
            let read = buf.filled();
            let taken = match self.write(cx, read, to) {
                Ok(taken) => taken,
                Err(error) => return Poll::Ready(Err(error)),
            };
            if let Some(rest) = read.get(taken..).filter(|rest| !rest.is_empty()) {
                self.rest.push_back(Bytes::copy_from_slice(rest));
            }
            Poll::Ready(Ok(read.len()))
        });
        match copied {
            Poll::Pending => self.poll_idle(cx, to),
            copied => copied.map_ok(|bytes| {
                self.adapt(bytes, READ_BYTES_MAX, from.is_socket() && to.is_socket());
                bytes
            }),
        }
    }

    /// Flushes the written bytes, because there are none to read.
    fn poll_idle(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut impl RelayEnd,
    ) -> Poll<io::Result<usize>> {
        if self.is_unflushed {
            ready!(Pin::new(to).poll_flush(cx))?;
            self.is_unflushed = false;
        }
        Poll::Pending
    }

    /// As [`Direction::poll_copied`], with bytes in memory: several pieces in one write.
    fn poll_passed(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut impl RelayEnd,
        to: &mut impl RelayEnd,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_rest(cx, to))?;
        let most = self.read_bytes;
        let mut first = match from.poll_piece(cx, most) {
            Poll::Pending => return self.poll_idle(cx, to),
            Poll::Ready(first) => first?,
        };
        let mut bytes = first.len();
        let mut is_drained = false;
        // The end and errors show again with the next read.
        let mut next = |left: usize| match from.poll_piece(cx, left) {
            Poll::Ready(piece) => piece.ok().filter(|piece| !piece.is_empty()),
            Poll::Pending => {
                is_drained = true;
                None
            }
        };
        if bytes == 0 {
            return Poll::Ready(Ok(0));
        }
        match Some(most - bytes)
            .filter(|left| *left > 0)
            .and_then(&mut next)
        {
            None => {
                let taken = self.write(cx, &first, to)?;
                first.advance(taken);
                self.rest
                    .extend(Some(first).filter(|rest| !rest.is_empty()));
            }
            Some(second) => {
                bytes += second.len();
                self.rest.extend([first, second]);
                while bytes < most
                    && self.rest.len() < PIECES_MAX
                    && let Some(piece) = next(most - bytes)
                {
                    bytes += piece.len();
                    self.rest.push_back(piece);
                }
                // The rest is written later.
                let _later = self.poll_rest(cx, to)?;
            }
        }
        self.adapt(bytes, PIECES_BYTES_MAX, false);
        if is_drained && self.rest.is_empty() {
            // The task is woken when more arrives.
            return self.poll_idle(cx, to);
        }
        Poll::Ready(Ok(bytes))
    }

    /// Chooses how the next bytes are moved, after a read of `bytes`.
    fn adapt(&mut self, bytes: usize, bytes_max: usize, are_sockets: bool) {
        if !self.rest.is_empty() {
            // The other side is slow.
            self.read_bytes = READ_BYTES_MIN;
        } else if bytes == bytes_max && are_sockets {
            let client = self.client.as_ref();
            self.pipe = client.and_then(|client| Pipe::take(client.source()));
        } else if bytes == self.read_bytes {
            self.read_bytes = (bytes * 2).min(bytes_max);
        }
    }

    /// Writes bytes until the other side takes no more. Returns how many it has taken.
    fn write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
        to: &mut impl RelayEnd,
    ) -> io::Result<usize> {
        let mut taken = 0;
        while let Some(left) = bytes.get(taken..).filter(|left| !left.is_empty()) {
            match Pin::new(&mut *to).poll_write(cx, left)? {
                Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(count) => {
                    taken += count;
                    self.is_unflushed = true;
                }
                Poll::Pending => break,
            }
        }
        Ok(taken)
    }

    /// Writes what was kept.
    fn poll_rest(&mut self, cx: &mut Context<'_>, to: &mut impl RelayEnd) -> Poll<io::Result<()>> {
        while !self.rest.is_empty() {
            let mut slices = [IoSlice::new(&[]); PIECES_MAX];
            for (slice, piece) in slices.iter_mut().zip(&self.rest) {
                *slice = IoSlice::new(piece);
            }
            let slices = slices.get(..self.rest.len()).unwrap_or(&slices);
            let mut count = ready!(Pin::new(&mut *to).poll_write_vectored(cx, slices))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.is_unflushed = true;
            while let Some(first) = self.rest.front_mut() {
                if first.len() > count {
                    first.advance(count);
                    break;
                }
                count -= first.len();
                self.rest.pop_front();
            }
        }
        // It holds no memory until the other side is slow again.
        self.rest = VecDeque::new();
        self.held = None;
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
            if let Poll::Ready(taken) = to.poll_empty(cx, pipe) {
                taken?;
                self.is_unflushed = true;
            } else if pipe.is_stalled(cx) {
                return self.poll_stalled(cx, from, to);
            } else {
                return Poll::Pending;
            }
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

    /// The other side has taken nothing for a while: keeps the bytes of the pipe in memory, and gives the pipe back.
    fn poll_stalled(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut impl RelayEnd,
        to: &mut impl RelayEnd,
    ) -> Poll<io::Result<usize>> {
        if let Some(pipe) = self.pipe.take() {
            let bytes = pipe.drain()?;
            self.held = self.client.as_ref().map(|client| client.hold(bytes.len()));
            self.rest.push_back(bytes);
            self.read_bytes = READ_BYTES_MIN;
        }
        self.poll_copied(cx, from, to)
    }
}
