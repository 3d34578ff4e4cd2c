//! Buffers between one client's connection and the readers of its channels.
//!
//! The library extends the window of a channel as soon as data arrives, and delivers the data of all channels in
//! sequence. So a channel with a slow reader would block the others. Here each channel is read immediately into a
//! buffer that all channels of a connection share.
//!
//! The library cannot withhold the window of one channel. It has one size for the windows of all channels of a connection,
//! and each message that uses up a window extends it to that size. So when the buffer is half full, the windows become
//! tiny ([`TRICKLE_WINDOW`]), and a channel that holds much is read with pauses: less arrives on it than even a slow reader
//! takes, and at most a tiny window of its data is ahead of the messages of the others. A new channel begins with a
//! large window at any time, so responses that fit into it are not slowed down.
//!
//! While windows are tiny, of the channels whose readers have stalled, the one with the most data is closed, unless there is
//! only one channel and none is being opened. When the buffer is full and no channel is closed, the connection waits. The
//! answer to a channel that is being opened comes behind the data.

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
/// Number of bytes in the buffer above which windows are tiny.
const SLOW_ABOVE: usize = HELD_BYTES_MAX / 2;
/// Size of a channel's window while more than [`SLOW_ABOVE`] is held.
const TRICKLE_WINDOW: u32 = 1 << 10;
/// Pause after a message on a channel that holds more than [`MUCH`], while windows are tiny.
const TRICKLE_PAUSE: Duration = Duration::from_millis(20);
/// More than a reader takes at a time.
const MUCH: usize = 256 << 10;
/// A channel that holds data for at least this long may be closed while windows are tiny.
const STALLED_AFTER: Duration = Duration::from_secs(10);
/// A reader that would take longer for the data of its channel has stalled.
const LONGEST_READ: Duration = Duration::from_secs(180);
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
    drain: Drain,
    ended: bool,
    reader: Option<Waker>,
    cut: CancellationToken,
}

/// How much a reader took while there was data, in the last one or two times [`STALLED_AFTER`].
#[derive(Clone, Copy, Debug)]
struct Drain {
    /// Since when there is data.
    holds_since: Instant,
    /// The beginning of the current period, in which `bytes` were read, and of the one before.
    began: Instant,
    bytes: usize,
    began_before: Instant,
    bytes_before: usize,
    took_at: Instant,
}

impl Drain {
    fn new(now: Instant) -> Self {
        Self {
            holds_since: now,
            began: now,
            bytes: 0,
            began_before: now,
            bytes_before: 0,
            took_at: now,
        }
    }

    fn took(&mut self, bytes: usize, now: Instant) {
        if now >= self.began + STALLED_AFTER {
            (self.began_before, self.bytes_before) = (self.began, self.bytes);
            (self.began, self.bytes) = (now, 0);
        }
        self.bytes += bytes;
        self.took_at = now;
    }

    /// Whether the reader takes `held` bytes too slowly.
    fn is_stalled(&self, held: usize, now: Instant) -> bool {
        let time = now.saturating_duration_since(self.began_before);
        let taken = (self.bytes + self.bytes_before) as f64;
        let is_slow = held as f64 * time.as_secs_f64() > taken * LONGEST_READ.as_secs_f64();
        now >= self.holds_since + STALLED_AFTER && (is_slow || now >= self.took_at + STALLED_AFTER)
    }
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
        while self.bytes > SLOW_ABOVE {
            let is_full = self.bytes + piece.len() > HELD_BYTES_MAX;
            // Each channel that waits asks again whenever another was read.
            let next = match self.none_stalled_before.filter(|next| now < *next) {
                Some(next) => next,
                None => {
                    let is_alone = self.channels.len() < 2;
                    let holders = self.channels.iter().filter(|(_, it)| it.bytes > 0);
                    let is_stalled = |it: &Channel| it.drain.is_stalled(it.bytes, now);
                    let stalled = holders.clone().filter(|(_, it)| is_stalled(it));
                    let most = stalled.max_by_key(|(_, it)| it.bytes);
                    if let Some((greedy, _)) = most.filter(|_| !is_alone) {
                        let greedy = *greedy;
                        self.cut(greedy);
                        continue;
                    }
                    let first = holders.map(|(_, it)| it.drain.holds_since).min();
                    let next = first.map_or(now, |at| at + STALLED_AFTER);
                    let next = next.max(now + STALLED_AFTER / 100);
                    self.none_stalled_before = Some(next);
                    next
                }
            };
            match is_full {
                true => return Admission::Full(next),
                false => break,
            }
        }
        // A channel that was closed meanwhile buffers nothing.
        if let Some(channel) = self.channels.get_mut(&number) {
            if channel.bytes == 0 {
                channel.drain = Drain::new(now);
            }
            channel.bytes += piece.len();
            self.bytes += piece.len();
            channel.push(std::mem::take(piece));
            if let Some(reader) = channel.reader.take() {
                reader.wake();
            }
        }
        Admission::Kept
    }

    /// Whether so much is held that `number` is read with pauses.
    fn is_slow(&self, number: u64) -> bool {
        let much = |it: &Channel| it.bytes > MUCH;
        self.bytes > SLOW_ABOVE && self.channels.get(&number).is_some_and(much)
    }

    fn cut(&mut self, number: u64) {
        if let Some(channel) = self.channels.remove(&number) {
            self.bytes -= channel.bytes;
            channel.cut.cancel();
        }
    }
}

impl Channel {
    /// Adds a piece. Each has its own cost in memory, so small ones become one.
    fn push(&mut self, piece: Vec<u8>) {
        match self.pieces.back_mut() {
            Some(last) if last.len() + piece.len() <= READ_BYTES => last.extend_from_slice(&piece),
            Some(last) => {
                last.shrink_to_fit();
                self.pieces.push_back(piece);
            }
            None => self.pieces.push_back(piece),
        }
    }
}

impl ChannelBuffers {
    /// The size of a channel's window from now on, if `large` is the usual one.
    pub(crate) fn window(&self, large: u32) -> u32 {
        match self.0.lock().bytes > SLOW_ABOVE {
            true => TRICKLE_WINDOW,
            false => large,
        }
    }

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
            drain: Drain::new(Instant::now()),
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
                let pause = tokio::time::sleep(TRICKLE_PAUSE);
                tokio::pin!(pause);
                loop {
                    let room = shared.room.notified();
                    if !shared.lock().is_slow(number) {
                        break;
                    }
                    tokio::select! {
                        () = room => {}
                        () = &mut pause => break,
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
        channel.drain.took(count, Instant::now());
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
    use tokio::io::AsyncWriteExt;

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
        let began = Instant::now();
        fill(&most, HELD_BYTES_MAX - 4 * PIECE).await;
        fill(&less, 3 * PIECE).await;
        // With the buffer full, one channel must be closed.
        fill(&good, 2 * PIECE).await;
        assert!(most.cut().is_cancelled() && !less.cut().is_cancelled());
        assert!(!good.cut().is_cancelled());
        assert!(began.elapsed() >= STALLED_AFTER && began.elapsed() < 2 * STALLED_AFTER);
        drop((most, less, good));
        let state = held.0.lock();
        assert!(state.bytes == 0 && state.channels.is_empty());
    }

    /// A reader of `rate` bytes per second, in lumps of `lump` bytes.
    async fn read_slowly(reader: &mut Buffered<tokio::io::Sink>, rate: usize, lump: usize) {
        let mut bytes = vec![0; lump];
        let mut ticks = tokio::time::interval(Duration::from_secs_f64(lump as f64 / rate as f64));
        loop {
            ticks.tick().await;
            if reader.read_exact(&mut bytes).await.is_err() {
                return;
            }
        }
    }

    /// Whether a reader of a source without end keeps its channel for ten minutes, beside another channel.
    async fn stays(rate: usize, lump: usize) -> bool {
        let held = ChannelBuffers::default();
        let other = held.channel();
        let mut slow = Buffered {
            inbox: held.channel(),
            writer: tokio::io::sink(),
        };
        let cut = slow.inbox.cut();
        let filling = slow.inbox.filling(tokio::io::repeat(7));
        tokio::select! {
            () = filling => {}
            () = read_slowly(&mut slow, rate, lump) => {}
            () = cut.cancelled() => {}
            () = tokio::time::sleep(Duration::from_secs(600)) => {}
        }
        assert!(!other.cut().is_cancelled());
        !cut.is_cancelled()
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_channel_does_not_keep_windows_tiny() {
        let held = ChannelBuffers::default();
        let [stalled, good] = [(); 2].map(|()| held.channel());
        fill(&stalled, SLOW_ABOVE + 1).await;
        assert_eq!(held.window(512 << 10), TRICKLE_WINDOW);
        // Messages of another channel come, and are read.
        let mut good = Buffered {
            inbox: good,
            writer: tokio::io::sink(),
        };
        let began = Instant::now();
        while !stalled.cut().is_cancelled() {
            fill(&good.inbox, 100).await;
            let mut bytes = [0; 100];
            good.read_exact(&mut bytes).await.unwrap();
            tokio::time::sleep(TRICKLE_PAUSE).await;
            assert!(began.elapsed() < 2 * STALLED_AFTER);
        }
        assert!(began.elapsed() > STALLED_AFTER / 2);
        assert_eq!(held.window(512), 512);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_what_it_holds_soon_enough_is_not_cut() {
        // Even from a client that ignores windows, so that the buffer is full all the time.
        let least = HELD_BYTES_MAX / LONGEST_READ.as_secs() as usize;
        for lump in [16 << 10, 1 << 20] {
            assert!(stays(least * 3 / 2, lump).await, "in lumps of {lump}");
            assert!(!stays(least / 2, lump).await, "in lumps of {lump}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_has_stalled_however_fast_it_was() {
        let held = ChannelBuffers::default();
        let other = held.channel();
        let mut fast = Buffered {
            inbox: held.channel(),
            writer: tokio::io::sink(),
        };
        let (cut, filling) = (fast.inbox.cut(), fast.inbox.filling(tokio::io::repeat(7)));
        let reading = async {
            let reading = read_slowly(&mut fast, 1 << 20, 4 << 10);
            tokio::time::timeout(6 * STALLED_AFTER, reading).await.ok();
            let began = Instant::now();
            cut.cancelled().await;
            began.elapsed()
        };
        let took = tokio::select! {
            () = filling => panic!("the source has no end"),
            took = reading => took,
        };
        assert!(
            took >= STALLED_AFTER && took < 2 * STALLED_AFTER,
            "{took:?}"
        );
        assert!(!other.cut().is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn small_messages_share_their_memory() {
        const COUNT: usize = 200_000;
        let held = ChannelBuffers::default();
        let mut channel = Buffered {
            inbox: held.channel(),
            writer: tokio::io::sink(),
        };
        let (mut near, far) = tokio::io::duplex(1);
        let writing = async {
            for nth in 0..COUNT {
                near.write_all(&[nth as u8]).await.unwrap();
            }
            drop(near);
        };
        let filling = channel.inbox.filling(far);
        tokio::join!(writing, filling);
        {
            let state = held.0.lock();
            let pieces = &state.channels.values().next().unwrap().pieces;
            assert_eq!(pieces.len(), COUNT.div_ceil(READ_BYTES));
            let memory: usize = pieces.iter().map(Vec::capacity).sum();
            assert!(memory <= COUNT + READ_BYTES, "{memory}");
        }
        let mut read = Vec::new();
        channel.read_to_end(&mut read).await.unwrap();
        assert!(read.iter().enumerate().all(|(nth, it)| nth as u8 == *it));
        assert_eq!(read.len(), COUNT);
    }

    #[tokio::test(start_paused = true)]
    async fn windows_are_tiny_while_much_is_held() {
        let held = ChannelBuffers::default();
        let mut slow = Buffered {
            inbox: held.channel(),
            writer: tokio::io::sink(),
        };
        fill(&slow.inbox, SLOW_ABOVE).await;
        assert_eq!(held.window(512), 512);
        let began = Instant::now();
        fill(&slow.inbox, READ_BYTES + 1).await;
        assert_eq!(began.elapsed(), 2 * TRICKLE_PAUSE);
        assert_eq!(held.window(512 << 10), TRICKLE_WINDOW);
        // Another channel is not slowed down.
        let other = held.channel();
        let began = Instant::now();
        fill(&other, MUCH).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        drop(other);
        slow.read_exact(&mut vec![0; PIECE]).await.unwrap();
        assert_eq!(held.window(512), 512);
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
