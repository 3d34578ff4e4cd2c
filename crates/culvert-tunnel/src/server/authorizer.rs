//! Authorization of agents by the component that knows accounts and endpoints. It does not depend on the
//! transport: sessions of the agent protocol and of SSH make the same calls.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{BoxFuture, Refusal, Secret};

use crate::wire::{DeprecationWarning, LabelledRequest, Options, PatchRequest};

/// Authorizes agents. A call may take as long as the store needs, and agents wait meanwhile: published agents
/// that are refused twice reconnect only after minutes.
pub trait AgentAuthorizer: Send + Sync {
    /// Authenticates an agent. The grant names the session: the previous one if the agent proves that it had
    /// it, otherwise a new one. A refusal is sent to the agent unchanged.
    fn authorize(&self, hello: AgentAuthRequest) -> BoxFuture<'_, Result<SessionGrant, Refusal>>;

    /// The port that the next TCP endpoint of the session will probably get; `None` if none is available. SSH clients
    /// get a port before their command is known.
    fn next_tcp_port<'a>(&'a self, grant: &'a SessionGrant) -> BoxFuture<'a, Option<u16>>;

    /// Grants an endpoint. Traffic may arrive as soon as this returns.
    fn bind<'a>(
        &'a self,
        grant: &'a SessionGrant,
        want: &'a EndpointRequest,
    ) -> BoxFuture<'a, Result<Binding, Refusal>>;

    /// Starts a tunnel with labels.
    fn bind_labels<'a>(
        &'a self,
        grant: &'a SessionGrant,
        want: &'a LabelledRequest,
    ) -> BoxFuture<'a, Result<String, Refusal>>;

    /// Changes an endpoint of the agent.
    fn patch<'a>(
        &'a self,
        grant: &'a SessionGrant,
        change: &'a PatchRequest,
    ) -> BoxFuture<'a, Result<(), Refusal>>;

    /// Removes an endpoint, which may have been removed before.
    fn unbind<'a>(&'a self, grant: &'a SessionGrant, id: &'a str) -> BoxFuture<'a, ()>;

    /// Reports that a granted session has no connection any more.
    fn ended(&self, end: SessionEnd) -> BoxFuture<'_, ()>;
}

/// How an agent is connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The agent protocol.
    #[default]
    Muxado,
    /// A reverse tunnel of an SSH client.
    Ssh,
}

impl Transport {
    /// The name in events.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Muxado => "muxado",
            Self::Ssh => "ssh",
        }
    }
}

/// The credential of an agent.
#[derive(Clone, Debug)]
pub enum Proof {
    /// An authtoken.
    Token(Secret),
    /// A public key whose private key signed the connection: `SHA256:` and the digest in base64, as
    /// `ssh-keygen -l` prints it.
    PublicKey(String),
    /// A certificate whose key signed the connection, and whose restrictions on connections are met.
    Certificate {
        /// The public key of the CA that signed it, as in [`Self::PublicKey`].
        authority: String,
        /// When it expires, in seconds of Unix time; `None` if never.
        valid_until: Option<u64>,
        /// The value of its extension [`ISSUER`].
        issuer: Option<String>,
    },
}

/// The certificate extension that names who had this installation issue a user certificate.
pub const ISSUER: &str = "issuer@culvert";

/// The authentication request of an agent.
#[derive(Clone, Debug)]
pub struct AgentAuthRequest {
    /// The credential.
    pub proof: Proof,
    /// How the agent is connected.
    pub transport: Transport,
    /// The session to resume, if any.
    pub former: Option<Former>,
    /// Information about the agent.
    pub about: About,
    /// The agent's address.
    pub peer: SocketAddr,
    /// The server's address.
    pub local: SocketAddr,
    /// The server name that the agent requested, if any.
    pub server_name: Option<String>,
}

/// A previous session of an agent.
#[derive(Clone, Debug)]
pub struct Former {
    /// The session's id.
    pub session_id: String,
    /// The session's [`SessionGrant::cookie`].
    pub cookie: String,
}

/// Information that an agent sends about itself. Each value may be empty, and may be as long as a message.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Version of the outermost client layer.
    pub version: String,
    /// `name/version` of each layer.
    pub user_agent: String,
    /// Operating system.
    pub os: String,
    /// Processor architecture.
    pub arch: String,
    /// Metadata of the application.
    pub metadata: String,
}

/// A granted session.
#[derive(Clone, Debug, Default)]
pub struct SessionGrant {
    /// The id, which the agent sends when it reconnects.
    pub session_id: String,
    /// The cookie that proves the session when the agent reconnects.
    pub cookie: String,
    /// The account's name, for display.
    pub account_name: String,
    /// The plan's name, for display.
    pub plan_name: String,
    /// The maximum duration, if any.
    pub duration: Option<Duration>,
    /// A notice that the agent is too old, if it is.
    pub deprecation: Option<DeprecationWarning>,
}

/// An endpoint that an agent requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndpointRequest {
    /// Empty to let the server choose; otherwise the id of an earlier grant to keep.
    pub id: String,
    /// The [`Binding::token`] of that grant.
    pub token: String,
    /// `http`, `https`, `tcp` or `tls`.
    pub proto: String,
    /// The address of the upstream, for display.
    pub forwards_to: String,
    /// Protocol of the upstream: empty, `http1` or `http2`.
    pub forwards_proto: String,
    /// The endpoint's options.
    pub options: Options,
    /// Id of an IP policy, or empty.
    pub ip_policy: String,
    /// The port that a TCP endpoint without an address gets if it is still available.
    pub tcp_port: Option<u16>,
    /// Metadata of the application.
    pub metadata: String,
    /// `public`, `internal` or `kubernetes`.
    pub bindings: Vec<String>,
    /// Whether other endpoints may share the URL.
    pub pooling_enabled: bool,
    /// The endpoint's name.
    pub name: String,
    /// The endpoint's description.
    pub description: String,
}

/// A granted endpoint.
#[derive(Clone, Debug, Default)]
pub struct Binding {
    /// The id, for the agent and for [`super::Bindings::dial`].
    pub id: String,
    /// The public URL.
    pub url: String,
    /// The `host` or `host:port` of that URL.
    pub name: String,
    /// A token that proves the grant when the agent requests the endpoint again.
    pub token: String,
}

/// An ended session.
#[derive(Clone, Debug)]
pub struct SessionEnd {
    /// The session's grant.
    pub grant: Arc<SessionGrant>,
    /// Why it ended.
    pub reason: EndReason,
    /// Whether the agent can resume the session: SSH clients cannot.
    pub may_return: bool,
}

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The agent closed it.
    Closed,
    /// The connection failed with this error.
    Lost(String),
    /// No heartbeat came in time.
    Silent,
    /// It reached its maximum duration.
    Expired,
    /// The server ended it, for this reason.
    Stopped(String),
}

impl EndReason {
    /// The reason of sessions that end because the server stops.
    pub fn shutdown() -> Self {
        Self::Stopped("server shutdown".into())
    }

    /// Whether the agent may reconnect soon, such as after a network failure. An agent that closed its
    /// session will not.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Silent)
    }
}

/// The text in events (contract: events 5.1).
impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("agent closed the session"),
            Self::Lost(how) => write!(f, "transport error: {how}"),
            Self::Silent => f.write_str("heartbeat timeout"),
            Self::Expired => f.write_str("session expired"),
            Self::Stopped(why) => f.write_str(why),
        }
    }
}
