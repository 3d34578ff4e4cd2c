//! The ports of a connection or exchange: to the endpoints of its account, and to message bodies.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use culvert_base::{BoxFuture, Share};
use http::response;

use crate::conn::{ConnCounters, ConnInfo};
use crate::policy::conn_state::PolicyConnState;
use crate::policy::run::OnExpressionError;
use crate::ports::forward_target::ForwardTarget;
use crate::ports::services::{Call, PolicyServices};
use crate::response::error_page::ErrorPages;
use crate::response::problem::{ERROR_CODE, Problem};
use crate::scheme::Scheme;

/// Largest body of a response to a policy's request, in bytes.
pub const ANSWER_BYTES_MAX: usize = 256 << 10;

/// A connection as policies see it.
#[derive(Clone, Copy, Debug)]
pub struct ConnContext<'x> {
    /// Facts of the connection.
    pub info: &'x ConnInfo,
    /// Counters of the connection.
    pub counters: &'x ConnCounters,
    /// Results of its policies' connection phases.
    pub state: &'x PolicyConnState,
    /// The pages for clients that prefer HTML.
    pub error_pages: &'x ErrorPages,
    /// Services that all policies share.
    pub services: &'x Arc<PolicyServices>,
    /// Finds and calls endpoints.
    pub host: &'x dyn PolicyHost,
    /// What follows if an expression of a rule fails.
    pub on_expression_error: OnExpressionError,
    /// Whether policies may call public hosts now.
    pub allows_public_calls: bool,
}

/// The endpoint whose traffic a policy handles.
#[derive(Clone, Copy, Debug)]
pub struct EndpointInfo<'x> {
    /// Its ID, `ep_…`.
    pub id: &'x str,
    /// Its account, `ac_…`.
    pub account: &'x Arc<str>,
    /// ID of its owner; empty if it has none.
    pub owner: &'x str,
    /// Its scheme.
    pub scheme: Scheme,
    /// Whether only policies of its account reach it.
    pub is_internal: bool,
    /// Its host name.
    pub host: &'x str,
    /// Its port; 0 for the default.
    pub port: u16,
    /// Whether `//` in a request's path becomes `/`.
    pub merge_slashes: bool,
    /// The internal endpoints that its policy names, and whose they were when it was written.
    pub forwards_to: &'x [ForwardTarget],
}

impl EndpointInfo<'_> {
    /// Whether its policy means this internal endpoint of another owner by a host: where it names the host, the owner that
    /// was there when it was written, and not one who took a freed name.
    pub fn means(&self, host: &str, to: EndpointInfo<'_>) -> bool {
        let mut named = self.forwards_to.iter();
        let named = named.find(|target| target.host == host);
        named.is_none_or(|target| target.owner == to.owner)
    }

    /// Its address as a URL.
    pub fn url(&self) -> String {
        let (name, host) = (self.scheme.name(), self.host);
        if self.scheme.port() == Some(self.port) || (self.port == 0 && !self.is_internal) {
            format!("{name}://{host}")
        } else {
            format!("{name}://{host}:{}", self.port)
        }
    }
}

/// An endpoint that traffic is forwarded to. It is opaque to policies.
#[derive(Clone, Debug)]
pub struct NextEndpoint(Arc<dyn Any + Send + Sync>);

impl NextEndpoint {
    /// Wraps an endpoint.
    pub fn new<T: Any + Send + Sync>(endpoint: Arc<T>) -> Self {
        Self(endpoint)
    }

    /// The wrapped endpoint; `None` if it has another type.
    pub fn endpoint<T: Any + Send + Sync>(self) -> Option<Arc<T>> {
        self.0.downcast().ok()
    }
}

/// Memory that is reserved until this is dropped.
pub struct Reservation {
    _room: Box<dyn Any + Send + Sync>,
}

impl Reservation {
    /// Keeps `room`, whose drop gives the memory back.
    pub fn new<T: Any + Send + Sync>(room: T) -> Self {
        Self {
            _room: Box::new(room),
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reservation")
    }
}

/// The response to a policy's request.
#[derive(Debug)]
pub struct Called {
    /// The head of the response.
    pub head: response::Parts,
    /// The whole body.
    pub body: Bytes,
    /// Memory that the body occupies.
    pub room: Reservation,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum NotCalled {
    /// The URL is not an HTTP URL, or cannot be called.
    #[error("the URL is not supported")]
    Unusable,
    /// The connection closed before the response.
    #[error("the connection closed without a response")]
    Closed,
    /// The body exceeds [`ANSWER_BYTES_MAX`].
    #[error("the response is longer than {ANSWER_BYTES_MAX} bytes")]
    TooLong,
    /// The limit on memory of buffered bodies is reached.
    #[error("too many bodies are buffered")]
    NoRoom,
    /// The deadline of the call passed.
    #[error("the request timed out")]
    TooSlow,
    /// Without details that would reveal the network behind the name.
    #[error("the host is unreachable, or its response is invalid")]
    Elsewhere,
}

impl Called {
    /// The code of a response that the edge made, and not a policy or an upstream.
    pub fn code(&self) -> Option<&str> {
        self.head.headers.get(ERROR_CODE)?.to_str().ok()
    }
}

/// Why a policy does not reach an internal endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotReached {
    /// There is none at the address.
    Offline,
    /// The owner of the policy's endpoint has no right to use it.
    Forbidden,
}

impl NotReached {
    /// The problem of a policy that forwards to it.
    pub fn problem(self) -> Problem {
        match self {
            Self::Offline => Problem::NoInternal,
            Self::Forbidden => Problem::InternalForbidden,
        }
    }
}

/// Finds and calls the endpoints that policies name, on behalf of one connection.
pub trait PolicyHost: Send + Sync + fmt::Debug {
    /// The next internal endpoint of the same account at an address, to which the policy of `from` may forward.
    ///
    /// # Errors
    /// If there is none, or if the owner of `from` has no right to use it.
    fn internal(
        &self,
        from: EndpointInfo<'_>,
        scheme: Scheme,
        host: &str,
        port: u16,
    ) -> Result<NextEndpoint, NotReached>;

    /// Sends a request to an internal endpoint, which handles it like a forwarded one. The response uses the share of
    /// memory of the calling endpoint.
    fn call(
        &self,
        share: Share,
        to: NextEndpoint,
        call: Call,
    ) -> BoxFuture<'_, Result<Called, NotCalled>>;

    /// Sends a request to a public host.
    fn call_public(&self, share: Share, call: Call) -> BoxFuture<'_, Result<Called, NotCalled>>;
}

/// The body of a request, which may still be arriving.
pub trait BodyReader: Send + fmt::Debug {
    /// Buffers the whole body, which is forwarded unchanged.
    fn read(&mut self, bytes_max: usize) -> BoxFuture<'_, Result<Bytes, Unread>>;
}

/// Why a body cannot be read.
#[derive(Clone, Copy, Debug)]
pub enum Unread {
    /// The client gets this response.
    Problem(Problem),
    /// The client aborted it.
    Broken,
}
