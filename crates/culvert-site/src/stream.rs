//! A connection to the server of a folder, within this process.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

use crate::Site;
use crate::response::respond;

/// The most bytes that wait in each direction.
const BUFFER_BYTES: usize = 64 << 10;
/// The most fields of a request.
const FIELDS_MAX: usize = 256;

/// A connection to a [`Site`], over HTTP/1.1. It has no task: each read and write also drives the server, and the server ends when
/// the stream is dropped. One task must use both directions.
pub struct SiteStream {
    client: DuplexStream,
    /// `None` after the server has closed the connection.
    server: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl SiteStream {
    pub(crate) fn to(site: Site) -> Self {
        let (client, server) = tokio::io::duplex(BUFFER_BYTES);
        let service = service_fn(move |request| respond(site.clone(), request));
        let serving = http1::Builder::new()
            // A client may have sent its last request.
            .half_close(true)
            // The owner of the connection limits the time.
            .header_read_timeout(None)
            // Else it would hold several pieces of a file for a client that reads slowly.
            .max_buf_size(BUFFER_BYTES)
            // More than the edge takes from clients and adds.
            .max_headers(FIELDS_MAX)
            .serve_connection(TokioIo::new(server), service);
        Self {
            client,
            server: Some(Box::pin(async move { drop(serving.await) })),
        }
    }

    fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(server) = &mut self.server
            && server.as_mut().poll(cx).is_ready()
        {
            self.server = None;
        }
    }
}

impl fmt::Debug for SiteStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SiteStream").finish_non_exhaustive()
    }
}

impl AsyncRead for SiteStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.drive(cx);
        Pin::new(&mut self.client).poll_read(cx, buf)
    }
}

impl AsyncWrite for SiteStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // First, so that there is room.
        self.drive(cx);
        Pin::new(&mut self.client).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.drive(cx);
        Pin::new(&mut self.client).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.client).poll_shutdown(cx);
        self.drive(cx);
        shut
    }
}
