//! The socket below TLS: reads ahead under load, and can acknowledge immediately.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

use crate::congestion_control::CongestionControl;

/// Size of the read-ahead buffer. The TLS library reads 4 KiB at a time, a quarter of a record.
const AHEAD_BYTES: usize = 64 << 10;
/// The most unsent bytes in the kernel's buffer. More would delay every small response.
const NOT_SENT_BYTES: u32 = 128 << 10;
/// Number of consecutive small reads after which reading ahead ends.
const QUIET_READS: u8 = 32;

/// Number of first bytes that are kept, to recognise a peer that speaks another protocol.
const FIRST_BYTES: usize = 4;

/// A socket to or from an agent.
#[derive(Debug)]
pub(crate) struct Socket {
    tcp: TcpStream,
    /// Data read ahead. Allocates nothing while no data arrives.
    ahead: BytesMut,
    /// Number of small reads that remain before reading ahead ends.
    patience: u8,
    /// The first bytes that arrived, and their number.
    first: ([u8; FIRST_BYTES], usize),
    prompt: Option<Arc<AtomicBool>>,
}

impl Socket {
    /// Disables Nagle's algorithm, and leaves acknowledgements to the kernel.
    pub(crate) fn new(tcp: TcpStream, congestion_control: &CongestionControl) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        // Optional: without this option, transfers are slower but correct.
        #[cfg(target_os = "linux")]
        SockRef::from(&tcp)
            .set_tcp_notsent_lowat(NOT_SENT_BYTES)
            .ok();
        congestion_control.apply(&tcp);
        Ok(Self {
            tcp,
            ahead: BytesMut::new(),
            patience: 0,
            first: ([0; FIRST_BYTES], 0),
            prompt: None,
        })
    }

    /// As [`Self::new`], but acknowledges immediately while `prompt` is set.
    ///
    /// Some agents leave Nagle's algorithm on and send a small write before each reply; delayed
    /// acknowledgements then add 40 ms to every request. The kernel resets the option from time to time, so
    /// every read sets it again.
    pub(crate) fn prompt(
        tcp: TcpStream,
        congestion_control: &CongestionControl,
        prompt: Arc<AtomicBool>,
    ) -> io::Result<Self> {
        let socket = Self::new(tcp, congestion_control)?;
        Ok(Self {
            prompt: Some(prompt),
            ..socket
        })
    }

    /// Has another runtime watch it from now on. A task that already waits for it is not woken any more.
    pub(crate) fn move_to(&mut self, runtime: &Handle) -> io::Result<()> {
        let tcp = SockRef::from(&self.tcp).try_clone()?;
        let _entered = runtime.enter();
        self.tcp = TcpStream::from_std(tcp.into())?;
        Ok(())
    }

    /// The first four bytes that arrived, or fewer.
    pub(crate) fn first_bytes(&self) -> &[u8] {
        &self.first.0[..self.first.1]
    }

    /// Keeps the first bytes of the peer.
    fn keep_first(&mut self, arrived: &[u8]) {
        let (bytes, length) = &mut self.first;
        let count = arrived.len().min(FIRST_BYTES - *length);
        bytes[*length..*length + count].copy_from_slice(&arrived[..count]);
        *length += count;
    }

    fn acknowledge(&self) {
        if self
            .prompt
            .as_ref()
            .is_some_and(|prompt| prompt.load(Ordering::Relaxed))
        {
            // Optional: without this option, transfers are slower but correct.
            SockRef::from(&self.tcp).set_tcp_quickack(true).ok();
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let it = &mut *self;
        if it.ahead.is_empty() {
            let (room, had) = (buf.remaining(), buf.filled().len());
            if it.patience == 0 {
                ready!(Pin::new(&mut it.tcp).poll_read(cx, buf))?;
                it.acknowledge();
                if it.first.1 < FIRST_BYTES {
                    it.keep_first(&buf.filled()[had..]);
                }
                if buf.filled().len() - had == room && room > 0 {
                    it.patience = QUIET_READS;
                }
                return Poll::Ready(Ok(()));
            }
            it.ahead.reserve(AHEAD_BYTES);
            let Poll::Ready(read) = pin!(it.tcp.read_buf(&mut it.ahead)).poll(cx) else {
                // A waiting socket needs no buffer.
                it.ahead = BytesMut::new();
                return Poll::Pending;
            };
            let read = read?;
            it.acknowledge();
            it.patience = if read <= room {
                it.patience.saturating_sub(1)
            } else {
                QUIET_READS
            };
        }
        let length = it.ahead.len().min(buf.remaining());
        buf.put_slice(&it.ahead[..length]);
        it.ahead.advance(length);
        if it.ahead.is_empty() && it.patience == 0 {
            it.ahead = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

culvert_io::delegate_io!(AsyncWrite for Socket { Self { tcp, .. } => tcp });

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (Socket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        let near = Socket::new(near.unwrap(), &CongestionControl::default());
        (near.unwrap(), far.unwrap().0)
    }

    #[tokio::test]
    async fn what_is_read_ahead_comes_in_order_and_the_end_behind_it() {
        let (mut socket, mut far) = pair().await;
        let sent: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
        let writing = async {
            for piece in sent.chunks(70_001) {
                far.write_all(piece).await.unwrap();
            }
            drop(far);
        };
        let reading = async {
            let (mut got, mut size) = (Vec::new(), 1);
            loop {
                // As TLS asks, and in between as somebody who wants little.
                size = if size == 4096 { 5 } else { 4096 };
                let mut part = vec![0; size];
                match socket.read(&mut part).await.unwrap() {
                    0 => return got,
                    length => got.extend_from_slice(&part[..length]),
                }
            }
        };
        let ((), got) = tokio::join!(writing, reading);
        assert!(got == sent, "{} bytes of {}", got.len(), sent.len());
    }

    #[test]
    fn a_socket_that_moved_needs_its_former_runtime_no_more() {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().build().unwrap()
        };
        let (former, next) = (runtime(), runtime());
        let (mut socket, far) = former.block_on(pair());
        let mut far = far.into_std().unwrap();
        far.set_nonblocking(false).unwrap();
        // It has bytes that were read ahead and bytes in the kernel when it moves.
        far.write_all(&[7; 9_000]).unwrap();
        let mut part = [0; 4096];
        former.block_on(socket.read_exact(&mut part)).unwrap();
        former.block_on(socket.read_exact(&mut part[..10])).unwrap();
        socket.move_to(next.handle()).unwrap();
        drop(former);

        let rest = &mut [0; 9_000 - 4096 - 10];
        next.block_on(socket.read_exact(rest)).unwrap();
        assert_eq!(rest, &[7; 9_000 - 4096 - 10]);
        next.block_on(async {
            let waits = std::future::poll_fn(|cx| {
                let mut part = ReadBuf::new(&mut part);
                Poll::Ready(Pin::new(&mut socket).poll_read(cx, &mut part).is_pending())
            });
            assert!(waits.await);
            far.write_all(b"late").unwrap();
            let mut late = [0; 4];
            socket.read_exact(&mut late).await.unwrap();
            assert_eq!(&late, b"late");
            socket.write_all(b"back").await.unwrap();
        });
        far.read_exact(&mut part[..4]).unwrap();
        assert_eq!(&part[..4], b"back");
    }

    #[tokio::test]
    async fn a_socket_that_waits_keeps_no_buffer_and_reads_ahead_no_more_when_quiet() {
        let (mut socket, mut far) = pair().await;
        far.write_all(&[7; 20_000]).await.unwrap();
        let mut part = [0; 4096];
        for _ in 0..4 {
            socket.read_exact(&mut part).await.unwrap();
        }
        assert_eq!(socket.patience, QUIET_READS, "there was much to read");
        socket
            .read_exact(&mut part[..20_000 - 4 * 4096])
            .await
            .unwrap();
        let waits = std::future::poll_fn(|cx| {
            let mut part = ReadBuf::new(&mut part);
            Poll::Ready(Pin::new(&mut socket).poll_read(cx, &mut part).is_pending())
        });
        assert!(waits.await);
        assert_eq!(socket.ahead.capacity(), 0);
        for _ in 0..QUIET_READS + 1 {
            far.write_all(b"beat").await.unwrap();
            assert!(socket.read(&mut part).await.unwrap() > 0);
        }
        assert_eq!((socket.patience, socket.ahead.capacity()), (0, 0));
    }
}
