//! Stands between the client and the HTTP/2 library, and takes the connection away when the client
//! floods it.
//!
//! Bytes pass as they are: only the [`Ledger`] looks at them. On its verdict the library sees a
//! broken connection, and the driver gets the wire to say why and to close.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::downstream::{Downstream, lock};
use crate::http::flood::{Flood, Ledger};
use crate::socket::Wire;

/// Where a connection that was taken away is left for its driver.
pub(crate) type CutSlot = Arc<Mutex<Option<Cut>>>;

/// A connection whose client floods.
#[derive(Debug)]
pub(crate) struct Cut {
    pub(crate) wire: Wire,
    /// What is left to be said.
    pub(crate) farewell: Option<[u8; 17]>,
}

/// A watched HTTP/2 connection.
#[derive(Debug)]
pub(crate) struct Watch {
    /// `None` once it was taken away.
    wire: Option<Wire>,
    ledger: Ledger,
    down: Arc<Downstream>,
    cut: CutSlot,
}

impl Watch {
    pub(crate) fn new(wire: Wire, down: Arc<Downstream>, cut: CutSlot) -> Self {
        Self {
            wire: Some(wire),
            ledger: Ledger::new(Instant::now()),
            down,
            cut,
        }
    }

    fn take_away(&mut self, flood: Flood) -> io::Error {
        let meters = &self.down.edge.meters;
        match flood {
            Flood::Resets => meters.floods_resets.up(),
            Flood::IdleFrames => meters.floods_idle_frames.up(),
            Flood::Continuations => meters.floods_continuations.up(),
        }
        tracing::debug!(?flood, client = %self.down.client, "an HTTP/2 client is cut");
        if let Some(wire) = self.wire.take() {
            let farewell = self.ledger.farewell();
            *lock(&self.cut) = Some(Cut { wire, farewell });
        }
        io::ErrorKind::ConnectionAborted.into()
    }

    fn wrote(&mut self, slices: &[io::IoSlice<'_>], length: usize) -> io::Result<()> {
        let now = Instant::now();
        let mut left = length;
        for slice in slices {
            let part = slice.get(..left.min(slice.len())).unwrap_or_default();
            left -= part.len();
            if let Err(flood) = self.ledger.sent(part, now) {
                return Err(self.take_away(flood));
            }
            if left == 0 {
                break;
            }
        }
        Ok(())
    }
}

impl AsyncRead for Watch {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let Some(wire) = &mut this.wire else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        };
        let before = buf.filled().len();
        let result = Pin::new(wire).poll_read(cx, buf);
        let bytes = buf.filled().get(before..).unwrap_or_default();
        if !bytes.is_empty()
            && let Err(flood) = this.ledger.received(bytes, Instant::now())
        {
            buf.set_filled(before);
            return Poll::Ready(Err(this.take_away(flood)));
        }
        result
    }
}

impl AsyncWrite for Watch {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let Some(wire) = &mut this.wire else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        };
        let result = Pin::new(wire).poll_write_vectored(cx, slices);
        if let Poll::Ready(Ok(length)) = result {
            this.wrote(slices, length)?;
        }
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.wire.as_ref().is_some_and(Wire::is_write_vectored)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().wire {
            Some(wire) => Pin::new(wire).poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().wire {
            Some(wire) => Pin::new(wire).poll_shutdown(cx),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.wire.is_some() && self.ledger.goaway().is_some_and(|code| code != 0) {
            self.down.edge.meters.http2_errors.up();
        }
    }
}
