//! Streams that consist of other streams.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::relay::RelayEnd;
use crate::relay::splice::Pipe;

/// Implements `AsyncRead`, `AsyncWrite` or both for a type by passing every call to a stream inside it.
///
/// The patterns match `&mut` of the type, and `&` for `is_write_vectored`. The expressions are references to the inner
/// stream, which must be `Unpin`. A generic type has its parameters before it.
///
/// ```ignore
/// delegate_io!(AsyncRead, AsyncWrite for Wire {
///     Self::Plain(io) => io,
///     Self::Tls(io) => io,
/// });
/// delegate_io!(AsyncWrite for [T: AsyncWrite + Unpin] Prefixed<T> { Self { io, .. } => io });
/// ```
#[macro_export]
macro_rules! delegate_io {
    (AsyncRead, AsyncWrite for $($rest:tt)+) => {
        $crate::delegate_io!(AsyncRead for $($rest)+);
        $crate::delegate_io!(AsyncWrite for $($rest)+);
    };
    (AsyncRead for [$($generics:tt)*] $type:ty { $($stream:pat => $io:expr),+ $(,)? }) => {
        impl<$($generics)*> ::tokio::io::AsyncRead for $type {
            fn poll_read(
                self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                buf: &mut ::tokio::io::ReadBuf<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                match self.get_mut() {
                    $($stream => ::std::pin::Pin::new($io).poll_read(cx, buf)),+
                }
            }
        }
    };
    (AsyncWrite for [$($generics:tt)*] $type:ty { $($stream:pat => $io:expr),+ $(,)? }) => {
        impl<$($generics)*> ::tokio::io::AsyncWrite for $type {
            fn poll_write(
                self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                bytes: &[u8],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                match self.get_mut() {
                    $($stream => ::std::pin::Pin::new($io).poll_write(cx, bytes)),+
                }
            }

            fn poll_write_vectored(
                self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
                slices: &[::std::io::IoSlice<'_>],
            ) -> ::std::task::Poll<::std::io::Result<usize>> {
                match self.get_mut() {
                    $($stream => ::std::pin::Pin::new($io).poll_write_vectored(cx, slices)),+
                }
            }

            fn is_write_vectored(&self) -> bool {
                match self {
                    $($stream => $io.is_write_vectored()),+
                }
            }

            fn poll_flush(
                self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                match self.get_mut() {
                    $($stream => ::std::pin::Pin::new($io).poll_flush(cx)),+
                }
            }

            fn poll_shutdown(
                self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<::std::io::Result<()>> {
                match self.get_mut() {
                    $($stream => ::std::pin::Pin::new($io).poll_shutdown(cx)),+
                }
            }
        }
    };
    ($trait:ident for $($rest:tt)+) => {
        $crate::delegate_io!($trait for [] $($rest)+);
    };
}

/// A stream from which some bytes were read ahead: it returns these first.
#[derive(Debug)]
pub struct Prefixed<T> {
    ahead: Bytes,
    io: T,
}

impl<T> Prefixed<T> {
    /// `ahead` was read from `io`.
    pub fn new(ahead: impl Into<Bytes>, io: T) -> Self {
        Self {
            ahead: ahead.into(),
            io,
        }
    }

    /// The stream itself.
    pub fn get_ref(&self) -> &T {
        &self.io
    }

    /// Takes at most `bytes_max` of the bytes that were read ahead.
    fn take_ahead(&mut self, bytes_max: usize) -> Bytes {
        let taken = self.ahead.split_to(self.ahead.len().min(bytes_max));
        if self.ahead.is_empty() {
            // Frees the memory, because the connection may last for days.
            self.ahead = Bytes::new();
        }
        taken
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Prefixed<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        buf.put_slice(&self.take_ahead(buf.remaining()));
        Poll::Ready(Ok(()))
    }
}

delegate_io!(AsyncWrite for [T: AsyncWrite + Unpin] Prefixed<T> { Self { io, .. } => io });

impl<T: RelayEnd> RelayEnd for Prefixed<T> {
    fn has_pieces(&self) -> bool {
        self.io.has_pieces()
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<io::Result<Bytes>> {
        if self.ahead.is_empty() {
            return self.io.poll_piece(cx, bytes_max);
        }
        Poll::Ready(Ok(self.take_ahead(bytes_max)))
    }

    fn is_socket(&self) -> bool {
        self.ahead.is_empty() && self.io.is_socket()
    }

    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        pipe: &mut Pipe,
        bytes_max: usize,
    ) -> Poll<io::Result<usize>> {
        self.io.poll_fill(cx, pipe, bytes_max)
    }

    fn poll_empty(&mut self, cx: &mut Context<'_>, pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        self.io.poll_empty(cx, pipe)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn bytes_that_were_read_ahead_come_first() {
        let (near, mut far) = tokio::io::duplex(64);
        let mut stream = Prefixed::new(b"read ahead, ".to_vec(), near);
        far.write_all(b"and the rest").await.unwrap();
        far.shutdown().await.unwrap();
        let mut first = [0; 4];
        stream.read_exact(&mut first).await.unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert_eq!((&first, rest.as_str()), (b"read", " ahead, and the rest"));
        stream.write_all(b"passed on").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut sent = String::new();
        far.read_to_string(&mut sent).await.unwrap();
        assert_eq!(sent, "passed on");
    }
}
