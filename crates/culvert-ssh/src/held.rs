//! Buffers between one client's connection and the readers of its channels.
//!
//! The library extends the window of a channel as soon as data arrives, and delivers the data of all channels in
//! sequence. So a channel with a slow reader would block the others. Here each channel is read immediately into a
//! buffer that all channels of a connection share. When it is full, of the channels whose readers have
//! stalled, the one with the most data is closed. If all readers make progress, or there is only one channel and none is
//! being opened, the connection waits. The answer to a channel that is being opened comes behind the data.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Size of the buffer that the channels of a connection share.
const HELD_BYTES_MAX: usize = 16 << 20;
/// A channel whose reader does not read for this long may be closed if the buffer is full.
const STALLED_AFTER: Duration = Duration::from_secs(2);
/// Size of one read: the payload of one protocol message.
const READ_BYTES: usize = 32 << 10;

/// The buffered data of a connection's channels.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChannelBuffers(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified when space becomes available.
    room: Notify,
}

#[derive(Debug, Default)]
struct State {
    numbers: u64,
    bytes: usize,
    channels: BTreeMap<u64, Channel>,
    /// Before this time no channel has stalled, as far as a look at all of them said.
    none_stalled_before: Option<Instant>,
}

#[derive(Debug)]
struct Channel {
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that were already read.
    taken: usize,
    bytes: usize,
    /// When data was last read, or when the buffer of the channel became non-empty.
    moved_at: Instant,
    ended: bool,
    reader: Option<Waker>,
    cut: CancellationToken,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether arrived data was buffered.
enum Admission {
    Kept,
    Full(Instant),
}

impl State {
    /// Buffers data of a channel if there is space. Otherwise returns the time at which the next stalled channel may
    /// be closed.
    fn keep(&mut self, number: u64, piece: &mut Vec<u8>, now: Instant) -> Admission {
        while self.bytes + piece.len() > HELD_BYTES_MAX {
            // Each channel that waits asks again whenever another was read.
            if let Some(next) = self.none_stalled_before.filter(|next| now < *next) {
                return Admission::Full(next);
            }
            let is_alone = self.channels.len() < 2;
            let holders = self.channels.iter().filter(|(_, it)| it.bytes > 0);
            let is_stalled = |it: &Channel| now >= it.moved_at + STALLED_AFTER;
            let stalled = holders.clone().filter(|(_, it)| is_stalled(it));
            let most = stalled.max_by_key(|(_, it)| it.bytes);
            match most.map(|(number, _)| *number) {
                Some(greedy) if !is_alone => self.cut(greedy),
                _ => {
                    let first = holders.map(|(_, it)| it.moved_at).min();
                    let next = first.map_or(now, |at| at + STALLED_AFTER);
                    let next = next.max(now + STALLED_AFTER / 20);
                    self.none_stalled_before = Some(next);
                    return Admission::Full(next);
                }
            }
        }
        // A channel that was closed meanwhile buffers nothing.
        if let Some(channel) = self.channels.get_mut(&number) {
            if channel.bytes == 0 {
                channel.moved_at = now;
            }
            channel.bytes += piece.len();
            self.bytes += piece.len();
            channel.pieces.push_back(std::mem::take(piece));
            if let Some(reader) = channel.reader.take() {
                reader.wake();
            }
        }
        Admission::Kept
    }

    fn cut(&mut self, number: u64) {
        if let Some(channel) = self.channels.remove(&number) {
            self.bytes -= channel.bytes;
            channel.cut.cancel();
        }
    }
}

impl ChannelBuffers {
    /// Adds a channel.
    pub(crate) fn channel(&self) -> ChannelBuffer {
        let mut state = self.0.lock();
        state.numbers += 1;
        let number = state.numbers;
        let cut = CancellationToken::new();
        let channel = Channel {
            pieces: VecDeque::new(),
            taken: 0,
            bytes: 0,
            moved_at: Instant::now(),
            ended: false,
            reader: None,
            cut: cut.clone(),
        };
        state.channels.insert(number, channel);
        ChannelBuffer {
            shared: Arc::clone(&self.0),
            number,
            cut,
        }
    }
}

/// The buffer of one channel.
#[derive(Debug)]
pub(crate) struct ChannelBuffer {
    shared: Arc<Shared>,
    number: u64,
    cut: CancellationToken,
}

impl ChannelBuffer {
    /// Cancelled when the channel must close because its reader has stalled.
    pub(crate) fn cut(&self) -> CancellationToken {
        self.cut.clone()
    }

    /// Reads a channel to its end, as fast as data arrives.
    pub(crate) fn filling<R>(&self, mut from: R) -> impl Future<Output = ()> + use<R>
    where
        R: AsyncRead + Unpin,
    {
        let (shared, number) = (Arc::clone(&self.shared), self.number);
        async move {
            loop {
                let mut piece = Vec::with_capacity(READ_BYTES);
                match from.read_buf(&mut piece).await {
                    Ok(1..) => {}
                    // End of data or an error: either way, the peer is gone.
                    Ok(0) | Err(_) => break,
                }
                piece.shrink_to_fit();
                loop {
                    let room = shared.room.notified();
                    let kept = shared.lock().keep(number, &mut piece, Instant::now());
                    match kept {
                        Admission::Kept => break,
                        Admission::Full(until) => {
                            tokio::select! {
                                () = room => {}
                                () = tokio::time::sleep_until(until) => {}
                            }
                        }
                    }
                }
            }
            if let Some(channel) = shared.lock().channels.get_mut(&number) {
                channel.ended = true;
                if let Some(reader) = channel.reader.take() {
                    reader.wake();
                }
            }
        }
    }

    fn poll_take(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.shared.lock();
        let Some(channel) = state.channels.get_mut(&self.number) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        };
        let mut count = 0;
        while let Some(piece) = channel.pieces.front()
            && buf.remaining() > 0
        {
            let rest = piece.get(channel.taken..).unwrap_or_default();
            let length = rest.len().min(buf.remaining());
            buf.put_slice(rest.get(..length).unwrap_or_default());
            count += length;
            channel.taken += length;
            if channel.taken == piece.len() {
                channel.pieces.pop_front();
                channel.taken = 0;
            }
        }
        if count == 0 && !channel.ended {
            channel.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        channel.bytes -= count;
        channel.moved_at = Instant::now();
        state.bytes -= count;
        drop(state);
        if count > 0 {
            self.shared.room.notify_waiters();
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for ChannelBuffer {
    fn drop(&mut self) {
        self.shared.lock().cut(self.number);
        self.shared.room.notify_waiters();
    }
}

/// A channel that is read through its inbox and written to directly.
pub(crate) struct Buffered<W> {
    pub(crate) inbox: ChannelBuffer,
    pub(crate) writer: W,
}

impl<W: Unpin> AsyncRead for Buffered<W> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.inbox.poll_take(cx, buf)
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Buffered<W> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: usize = 1 << 20;

    async fn fill(inbox: &ChannelBuffer, bytes: usize) {
        let from = tokio::io::repeat(7).take(bytes as u64);
        inbox.filling(from).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_stalled_channel_that_holds_most_is_cut_for_one_that_moves() {
        let held = ChannelBuffers::default();
        let [most, less, good] = [(); 3].map(|()| held.channel());
        fill(&most, HELD_BYTES_MAX / 2).await;
        fill(&less, HELD_BYTES_MAX / 2 - PIECE).await;
        let began = Instant::now();
        // With the buffer full, one channel must be closed.
        fill(&good, 2 * PIECE).await;
        assert!(most.cut().is_cancelled() && !less.cut().is_cancelled());
        assert!(!good.cut().is_cancelled());
        assert!(began.elapsed() >= STALLED_AFTER && began.elapsed() < 2 * STALLED_AFTER);
        drop((most, less, good));
        let state = held.0.lock();
        assert!(state.bytes == 0 && state.channels.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_channel_alone_waits_for_its_reader() {
        let held = ChannelBuffers::default();
        let mut only = Buffered {
            inbox: held.channel(),
            writer: tokio::io::sink(),
        };
        let total = HELD_BYTES_MAX + PIECE;
        let filling = only.inbox.filling(tokio::io::repeat(7).take(total as u64));
        let reading = async {
            tokio::time::sleep(20 * STALLED_AFTER).await;
            let mut read = Vec::new();
            only.read_to_end(&mut read).await.unwrap();
            read
        };
        let ((), read) = tokio::join!(filling, reading);
        assert_eq!(read.len(), total);
        assert!(read.iter().all(|byte| *byte == 7));
    }
}
