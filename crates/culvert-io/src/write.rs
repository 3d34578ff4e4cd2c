//! Writes the bytes of a [`WriteBuffer`].

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use culvert_http::http1::WriteBuffer;
use tokio::io::AsyncWrite;

/// Writes until the buffer has space. Adds the number of bytes to `written`.
pub fn poll_capacity<W: AsyncWrite + Unpin>(
    out: &mut WriteBuffer,
    io: &mut W,
    cx: &mut Context<'_>,
    written: &mut u64,
) -> Poll<io::Result<()>> {
    while !out.has_capacity() {
        ready!(poll_write(out, io, cx, written))?;
    }
    Poll::Ready(Ok(()))
}

/// Writes everything and flushes.
pub fn poll_empty<W: AsyncWrite + Unpin>(
    out: &mut WriteBuffer,
    io: &mut W,
    cx: &mut Context<'_>,
    written: &mut u64,
) -> Poll<io::Result<()>> {
    while !out.is_written() {
        ready!(poll_write(out, io, cx, written))?;
    }
    if out.is_unflushed() {
        ready!(Pin::new(io).poll_flush(cx))?;
        out.flushed();
    }
    Poll::Ready(Ok(()))
}

fn poll_write<W: AsyncWrite + Unpin>(
    out: &mut WriteBuffer,
    io: &mut W,
    cx: &mut Context<'_>,
    written: &mut u64,
) -> Poll<io::Result<()>> {
    let io = Pin::new(io);
    let result = match out.unwritten() {
        [front, [], []] => io.poll_write(cx, front),
        [[], data, []] => io.poll_write(cx, data),
        [front, data, back] => {
            let slices = [front, data, back].map(IoSlice::new);
            // Some streams write only the first slice, which must not be empty.
            let skip = usize::from(front.is_empty());
            io.poll_write_vectored(cx, slices.get(skip..).unwrap_or_default())
        }
    };
    let bytes = ready!(result)?;
    if bytes == 0 {
        return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
    }
    *written = written.saturating_add(bytes as u64);
    out.wrote(bytes);
    Poll::Ready(Ok(()))
}
