//! Requests that control asks the edge to send to an endpoint again.

use culvert_events::EventId;

/// A request to be sent again.
#[derive(Clone, Debug)]
pub struct ReplayRequest {
    /// The id of the original event.
    pub event: String,
    /// The endpoint, which must serve the URL.
    pub endpoint: String,
    /// Whether it goes directly to the upstream, past the policy.
    pub skips_policy: bool,
    /// Whether the endpoint's scheme is `https`.
    pub is_https: bool,
    /// The host of the endpoint, with its port if that is part of it.
    pub authority: String,
    /// The method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Names and values of header fields. The host, the length, forwarding fields and the fields of a hop are the
    /// edge's own.
    pub headers: Vec<(String, String)>,
    /// The whole body.
    pub body: Vec<u8>,
}

/// A request that was sent again.
#[derive(Clone, Copy, Debug)]
pub struct Replayed {
    /// The id of its event; `None` if no event is made.
    pub event: Option<EventId>,
    /// The status of the response; `None` if the connection was closed without one.
    pub status: Option<u16>,
}

/// Why a request was not sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReplayed {
    /// The endpoint does not exist here, or does not serve the host.
    #[error("the endpoint does not serve this host on this server")]
    NoEndpoint,
    /// The target, the host or the method cannot be sent.
    #[error("the request is malformed")]
    Malformed,
    /// The policy asks for client certificates, or its connection phase refuses this host.
    #[error("the traffic policy rejects the connection")]
    Refused,
    /// The server is stopping or overloaded.
    #[error("the server does not accept requests now")]
    Unavailable,
}
