//! Pipes on Linux.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::task::{Context, Poll};

use bytes::Bytes;
use culvert_base::sync::lock;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use rustix::process::{Resource, getrlimit};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::{HeldBytes, Pipe};
use crate::alarm::Alarm;

/// Most pipes of the process, and how many files it may open for each of them.
const PIPES_MAX: u64 = 256;
const FILES_PER_PIPE: u64 = 64;
/// The part of them that one source may use.
const SOURCES_PART: u64 = 2;
/// Most idle pipes that are kept for the next relays.
const KEPT_MAX: usize = 64;
/// Bytes that a pipe holds, if the system allows it.
const PIPE_BYTES: usize = 256 << 10;

static OPEN: AtomicU64 = AtomicU64::new(0);

static PIPES: Mutex<Pipes> = Mutex::new(Pipes {
    kept: Vec::new(),
    by_source: BTreeMap::new(),
});

/// The pipes of the process.
#[derive(Debug)]
struct Pipes {
    /// Idle pipes. All threads share them: those of an idle thread would count towards the limit, and help no other.
    kept: Vec<PipeEnds>,
    /// Number of pipes that each source uses. At most [`PIPES_MAX`] sources.
    by_source: BTreeMap<IpAddr, u64>,
}

/// The use of a pipe by a source.
#[derive(Debug)]
pub(super) struct SourceShare(IpAddr);

impl SourceShare {
    fn take(pipes: &mut Pipes, source: IpAddr) -> Option<Self> {
        let used = pipes.by_source.get(&source).copied().unwrap_or_default();
        if used >= pipes_max().div_ceil(SOURCES_PART) {
            return None;
        }
        pipes.by_source.insert(source, used + 1);
        Some(Self(source))
    }
}

impl Drop for SourceShare {
    fn drop(&mut self) {
        let mut pipes = lock(&PIPES);
        if let Some(used) = pipes.by_source.get_mut(&self.0) {
            *used = used.saturating_sub(1);
            if *used == 0 {
                pipes.by_source.remove(&self.0);
            }
        }
    }
}

/// Number of pipes that a source uses.
pub fn used_by(source: IpAddr) -> u64 {
    let pipes = lock(&PIPES);
    pipes.by_source.get(&source).copied().unwrap_or_default()
}

/// The two ends of a pipe.
#[derive(Debug)]
pub(super) struct PipeEnds {
    read: OwnedFd,
    write: OwnedFd,
    _counted: OpenPipe,
}

/// The place of a pipe among those of the process.
#[derive(Debug)]
struct OpenPipe;

/// Most pipes under the limit of open files.
fn pipes_max() -> u64 {
    static MAX: OnceLock<u64> = OnceLock::new();
    *MAX.get_or_init(|| {
        let files = getrlimit(Resource::Nofile).current;
        files.map_or(PIPES_MAX, |files| PIPES_MAX.min(files / FILES_PER_PIPE))
    })
}

impl OpenPipe {
    fn take() -> Option<Self> {
        let fits = |open: u64| (open < pipes_max()).then_some(open + 1);
        let taken = OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        taken.is_ok().then_some(Self)
    }
}

impl Drop for OpenPipe {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PipeEnds {
    fn open() -> Option<Self> {
        let counted = OpenPipe::take()?;
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (read, write) = pipe_with(flags).ok()?;
        // A smaller pipe works as well.
        let _smaller = fcntl_setpipe_size(&write, PIPE_BYTES);
        Some(Self {
            read,
            write,
            _counted: counted,
        })
    }
}

impl Pipe {
    /// An empty pipe for the traffic of a source, if there is one.
    pub fn take(source: IpAddr) -> Option<Self> {
        let (share, kept) = {
            let mut pipes = lock(&PIPES);
            (SourceShare::take(&mut pipes, source)?, pipes.kept.pop())
        };
        let ends = kept.or_else(PipeEnds::open)?;
        Some(Self {
            ends,
            _share: share,
            held: HeldBytes::default(),
            stalled_since: None,
            alarm: Alarm::default(),
        })
    }

    /// Keeps it for the next relay.
    pub fn give_back(self) {
        if self.is_empty() {
            let mut pipes = lock(&PIPES);
            if pipes.kept.len() < KEPT_MAX {
                pipes.kept.push(self.ends);
            }
        }
    }

    /// Takes out all bytes, and keeps it for the next relay.
    ///
    /// # Errors
    ///
    /// The system refuses a read.
    pub fn drain(mut self) -> io::Result<Bytes> {
        let mut bytes = vec![0; self.held.0];
        let mut filled = 0;
        while let Some(room) = bytes.get_mut(filled..).filter(|room| !room.is_empty()) {
            match rustix::io::read(&self.ends.read, room) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => filled += read,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.held.set(0);
        self.give_back();
        Ok(bytes.into())
    }

    /// Moves up to `bytes_max` bytes that have arrived at a socket into the pipe. 0 means the end.
    ///
    /// Fails with [`Unsupported`](io::ErrorKind::Unsupported) if there are bytes that only a read returns: the kernel
    /// moves none across TCP's urgent mark.
    pub fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        socket: &TcpStream,
        bytes_max: usize,
    ) -> Poll<io::Result<usize>> {
        // The kernel does not say whether the socket is empty or the pipe is full.
        debug_assert!(self.is_empty(), "a pipe is filled only while it is empty");
        let bytes_max = bytes_max.min(PIPE_BYTES);
        loop {
            std::task::ready!(socket.poll_read_ready(cx))?;
            let moved = socket.try_io(Interest::READABLE, || {
                let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
                let moved = splice(socket, None, &self.ends.write, None, bytes_max, flags);
                let moved = moved.map_err(io::Error::from);
                let is_none = match &moved {
                    Ok(bytes) => *bytes == 0,
                    Err(error) => is_again(error),
                };
                let mut byte = [MaybeUninit::uninit()];
                if is_none && SockRef::from(socket).peek(&mut byte).is_ok_and(|n| n > 0) {
                    return Err(io::ErrorKind::Unsupported.into());
                }
                moved
            });
            match moved {
                Err(error) if is_again(&error) => {}
                Ok(bytes) => {
                    // Never too few: a pipe that counts as empty is given to another connection.
                    self.held.set(self.held.0.saturating_add(bytes));
                    return Poll::Ready(Ok(bytes));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Moves bytes out of the pipe, which is not empty, to a socket.
    pub fn poll_empty(
        &mut self,
        cx: &mut Context<'_>,
        socket: &TcpStream,
    ) -> Poll<io::Result<usize>> {
        loop {
            std::task::ready!(socket.poll_write_ready(cx))?;
            let moved = socket.try_io(Interest::WRITABLE, || {
                let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
                let moved = splice(&self.ends.read, None, socket, None, self.held.0, flags);
                moved.map_err(io::Error::from)
            });
            match moved {
                Err(error) if is_again(&error) => {}
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(bytes) => {
                    self.held.set(self.held.0.saturating_sub(bytes));
                    self.stalled_since = None;
                    return Poll::Ready(Ok(bytes));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

fn is_again(error: &io::Error) -> bool {
    let kind = error.kind();
    kind == io::ErrorKind::WouldBlock || kind == io::ErrorKind::Interrupted
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use super::*;

    /// Tests that count on idle pipes take turns.
    static TURN: Mutex<()> = Mutex::new(());

    fn source(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// A thread that becomes idle leaves its pipes to the others.
    #[test]
    fn idle_pipes_are_counted_over_all_threads() {
        let _turn = lock(&TURN);
        let descriptors = |pipe: &Pipe| pipe.ends.read.as_raw_fd();
        let given = std::thread::spawn(move || {
            let pipe = Pipe::take(source(1)).unwrap();
            let kept = descriptors(&pipe);
            pipe.give_back();
            kept
        });
        let given = given.join().unwrap();
        // Other tests may take it meanwhile, and give it back.
        for _ in 0..10_000 {
            let taken: Vec<Pipe> = (0..KEPT_MAX).map_while(|_| Pipe::take(source(1))).collect();
            let is_there = taken.iter().any(|pipe| descriptors(pipe) == given);
            taken.into_iter().for_each(Pipe::give_back);
            if is_there {
                return;
            }
            std::thread::yield_now();
        }
        panic!("the pipe {given} is not kept");
    }

    #[cfg(debug_assertions)]
    #[tokio::test]
    #[should_panic(expected = "only while it is empty")]
    async fn a_pipe_with_bytes_is_not_filled() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().await.unwrap();
        near.write_all(b"ab").unwrap();
        let mut pipe = Pipe::take(source(9)).unwrap();
        for _ in 0..2 {
            let filled = std::future::poll_fn(|cx| pipe.poll_fill(cx, &far, 1)).await;
            assert_eq!(filled.unwrap(), 1);
        }
    }

    #[test]
    fn a_source_leaves_pipes_to_others() {
        let _turn = lock(&TURN);
        let most = pipes_max().div_ceil(SOURCES_PART);
        let mut taken = Vec::new();
        // Other tests may have some meanwhile.
        while let Some(pipe) = Pipe::take(source(2)) {
            taken.push(pipe);
        }
        assert!(taken.len() as u64 <= most, "{} of {most}", taken.len());
        assert_eq!(used_by(source(2)), taken.len() as u64);
        let other = Pipe::take(source(3)).expect("one for another source");
        other.give_back();
        taken.into_iter().for_each(Pipe::give_back);
        assert_eq!(used_by(source(2)), 0);
        assert_eq!(used_by(source(3)), 0);
    }

    #[test]
    fn a_drained_pipe_gives_all_its_bytes_and_its_place() {
        let _turn = lock(&TURN);
        let mut pipe = Pipe::take(source(4)).unwrap();
        let bytes: Vec<u8> = (0..40_000u32).map(|n| n.to_le_bytes()[0]).collect();
        let mut write = std::fs::File::from(pipe.ends.write.try_clone().unwrap());
        write.write_all(&bytes).unwrap();
        pipe.held.set(bytes.len());
        assert!(crate::relay::splice::held_bytes() >= 40_000);
        assert!(pipe.drain().unwrap() == bytes);
        assert_eq!(used_by(source(4)), 0);
    }
}
