//! Pipes on Linux.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::task::{Context, Poll};

use culvert_base::sync::lock;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use rustix::process::{Resource, getrlimit};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::Pipe;

/// Most pipes of the process, and how many files it may open for each of them.
const PIPES_MAX: u64 = 256;
const FILES_PER_PIPE: u64 = 64;
/// Most idle pipes that are kept for the next relays.
const KEPT_MAX: usize = 64;
/// Bytes that a pipe holds, if the system allows it.
const PIPE_BYTES: usize = 256 << 10;

static OPEN: AtomicU64 = AtomicU64::new(0);

/// Idle pipes. All threads share them: those of an idle thread would count towards the limit, and help no other.
static KEPT: Mutex<Vec<Ends>> = Mutex::new(Vec::new());

/// The two ends of a pipe.
#[derive(Debug)]
pub(super) struct Ends {
    read: OwnedFd,
    write: OwnedFd,
    _counted: Counted,
}

/// The place of a pipe among those of the process.
#[derive(Debug)]
struct Counted;

/// Most pipes under the limit of open files.
fn pipes_max() -> u64 {
    static MAX: OnceLock<u64> = OnceLock::new();
    *MAX.get_or_init(|| {
        let files = getrlimit(Resource::Nofile).current;
        files.map_or(PIPES_MAX, |files| PIPES_MAX.min(files / FILES_PER_PIPE))
    })
}

impl Counted {
    fn take() -> Option<Self> {
        let fits = |open: u64| (open < pipes_max()).then_some(open + 1);
        let taken = OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        taken.is_ok().then_some(Self)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Ends {
    fn open() -> Option<Self> {
        let counted = Counted::take()?;
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
    /// An empty pipe, if there is one.
    pub(crate) fn take() -> Option<Self> {
        let kept = lock(&KEPT).pop();
        let ends = kept.or_else(Ends::open)?;
        Some(Self { ends, bytes: 0 })
    }

    /// Keeps it for the next relay.
    pub(crate) fn give_back(self) {
        let mut kept = lock(&KEPT);
        if self.is_empty() && kept.len() < KEPT_MAX {
            kept.push(self.ends);
        }
    }

    /// Moves up to `bytes_max` bytes that have arrived at a socket into the pipe, which is empty. 0 means the end.
    ///
    /// Fails with [`Unsupported`](io::ErrorKind::Unsupported) if there are bytes that only a read returns: the kernel
    /// moves none across TCP's urgent mark.
    pub(crate) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        socket: &TcpStream,
        bytes_max: usize,
    ) -> Poll<io::Result<usize>> {
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
                    self.bytes = bytes;
                    return Poll::Ready(Ok(bytes));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Moves bytes out of the pipe, which is not empty, to a socket.
    pub(crate) fn poll_empty(
        &mut self,
        cx: &mut Context<'_>,
        socket: &TcpStream,
    ) -> Poll<io::Result<usize>> {
        loop {
            std::task::ready!(socket.poll_write_ready(cx))?;
            let moved = socket.try_io(Interest::WRITABLE, || {
                let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
                let moved = splice(&self.ends.read, None, socket, None, self.bytes, flags);
                moved.map_err(io::Error::from)
            });
            match moved {
                Err(error) if is_again(&error) => {}
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(bytes) => {
                    self.bytes = self.bytes.saturating_sub(bytes);
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
    use std::os::fd::AsRawFd;

    use super::*;

    /// A thread that becomes idle leaves its pipes to the others.
    #[test]
    fn idle_pipes_are_counted_over_all_threads() {
        let descriptors = |pipe: &Pipe| pipe.ends.read.as_raw_fd();
        let given = std::thread::spawn(move || {
            let pipe = Pipe::take().unwrap();
            let kept = descriptors(&pipe);
            pipe.give_back();
            kept
        });
        let given = given.join().unwrap();
        // Other tests may take it meanwhile, and give it back.
        for _ in 0..10_000 {
            let taken: Vec<Pipe> = (0..KEPT_MAX).map_while(|_| Pipe::take()).collect();
            let is_there = taken.iter().any(|pipe| descriptors(pipe) == given);
            taken.into_iter().for_each(Pipe::give_back);
            if is_there {
                return;
            }
            std::thread::yield_now();
        }
        panic!("the pipe {given} is not kept");
    }
}
