//! Systems without pipes between sockets.

use std::io;
use std::net::IpAddr;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::net::TcpStream;

use super::Pipe;

/// None.
pub fn used_by(_: IpAddr) -> u64 {
    0
}

impl Pipe {
    /// There is none.
    pub fn take(_: IpAddr) -> Option<Self> {
        None
    }

    /// Unreachable: there is no pipe.
    pub fn drain(self) -> io::Result<Bytes> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Unreachable: there is no pipe.
    pub fn give_back(self) {}

    /// Unreachable: there is no pipe.
    pub fn poll_fill(
        &mut self,
        _: &mut Context<'_>,
        _: &TcpStream,
        _: usize,
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }

    /// Unreachable: there is no pipe.
    pub fn poll_empty(&mut self, _: &mut Context<'_>, _: &TcpStream) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
