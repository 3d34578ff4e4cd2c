//! What connections to upstreams need of their owner: the heads and bodies of its requests, and a place for their tasks.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use culvert_base::Meter;
use culvert_http::http1::{BodyWriter, WriteBuffer};
use http::Method;
use http_body::Body;

/// The owner of connections to upstreams.
pub trait PoolOwner: Send + Sync + 'static {
    /// Counts connections that are opened.
    fn connects(&self) -> &Meter;

    /// Counts connections that could not be opened.
    fn connects_failed(&self) -> &Meter;

    /// Runs a task until it ends. A panic in it must not end others.
    fn track(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static);
}

/// The head of a request to an HTTP/1 upstream.
pub trait UpstreamHead {
    /// The method.
    fn method(&self) -> &Method;

    /// Whether the head of the response is wanted as received, without a map of its fields.
    fn wants_raw_response(&self) -> bool;

    /// Whether the body waits for 100 (Continue) of the upstream (RFC 9110 10.1.1).
    fn awaits_continue(&self) -> bool;

    /// Writes it, and returns the writer for the body, which has `body_bytes` if that is known.
    fn write(&self, out: &mut WriteBuffer, body_bytes: Option<u64>) -> BodyWriter;
}

/// The body of a request.
pub trait UploadBody:
    Body<Data = Bytes, Error = UploadError> + fmt::Debug + Send + Unpin + 'static
{
}

impl<B> UploadBody for B where
    B: Body<Data = Bytes, Error = UploadError> + fmt::Debug + Send + Unpin + 'static
{
}

/// Why a request's body is incomplete.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// The client aborted the request.
    #[error("the client aborted the request")]
    Client,
    /// The body is longer than allowed.
    #[error("the request body is too long")]
    TooLong,
    /// The client sends too slowly.
    #[error("the client sends too slowly")]
    TooSlow,
}
