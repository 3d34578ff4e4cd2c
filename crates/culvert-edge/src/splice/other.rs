//! Systems without pipes between sockets.

use std::io;
use std::net::IpAddr;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::net::TcpStream;

use super::Pipe;

impl Pipe {
    /// There is none.
    pub(crate) fn take(_: IpAddr) -> Option<Self> {
        None
    }

    pub(crate) fn drain(self) -> io::Result<Bytes> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn give_back(self) {}

    pub(crate) fn poll_fill(
        &mut self,
        _: &mut Context<'_>,
        _: &TcpStream,
        _: usize,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    pub(crate) fn poll_empty(
        &mut self,
        _: &mut Context<'_>,
        _: &TcpStream,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
