//! Authorization of agents, by whoever knows accounts and endpoints. Nothing here depends on how an agent
//! came: the protocol of agents and SSH ask the same questions.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{BoxFuture, Refusal, Secret};

use crate::wire::{LabelledRequest, Options, PatchRequest};

/// Decides. Each call may take as long as the store needs; agents are held meanwhile, because the
/// published ones come back only after minutes when they are refused twice.
pub trait AgentAuthorizer: Send + Sync {
    /// An agent says who it is. The grant names the session: an old one, if the agent proves that
    /// it had it, else a new one. A refusal is told to the agent as it is.
    fn authorize(&self, hello: AgentAuthRequest) -> BoxFuture<'_, Result<SessionGrant, Refusal>>;

    /// An agent wants an endpoint. When this is done traffic may come.
    fn bind<'a>(
        &'a self,
        grant: &'a SessionGrant,
        want: &'a Wanted,
    ) -> BoxFuture<'a, Result<Binding, Refusal>>;

    /// An agent offers itself under labels.
    fn bind_labels<'a>(
        &'a self,
        grant: &'a SessionGrant,
        want: &'a LabelledRequest,
    ) -> BoxFuture<'a, Result<String, Refusal>>;

    /// An agent changes an endpoint of its own.
    fn patch<'a>(
        &'a self,
        grant: &'a SessionGrant,
        change: &'a PatchRequest,
    ) -> BoxFuture<'a, Result<(), Refusal>>;

    /// An agent gives an endpoint up. It may have done so before.
    fn unbind<'a>(&'a self, grant: &'a SessionGrant, id: &'a str) -> BoxFuture<'a, ()>;

    /// A session that was granted has no connection any more.
    fn ended(&self, end: SessionEnd) -> BoxFuture<'_, ()>;
}

/// How an agent is connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// The protocol of agents.
    #[default]
    Muxado,
    /// A reverse tunnel of an SSH client.
    Ssh,
}

impl Transport {
    /// As events name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Muxado => "muxado",
            Self::Ssh => "ssh",
        }
    }
}

/// What an agent shows to be known.
#[derive(Clone, Debug)]
pub enum Proof {
    /// The token of a credential.
    Token(Secret),
    /// A public key whose private half signed the connection: `SHA256:` and the digest in base64, as
    /// `ssh-keygen -l` prints it.
    PublicKey(String),
    /// A certificate whose key signed the connection. What it demands of the connection was seen to by
    /// whoever took it.
    Certificate {
        /// The authority's public key that signed it, as in [`Self::PublicKey`].
        authority: String,
        /// When it ends, in seconds of Unix time; `None` if it never does.
        valid_until: Option<u64>,
        /// What its extension [`ISSUER`] says.
        issuer: Option<String>,
    },
}

/// The extension in which this installation writes who had a certificate of a user issued.
pub const ISSUER: &str = "issuer@culvert";

/// An agent that says who it is.
#[derive(Clone, Debug)]
pub struct AgentAuthRequest {
    /// What it shows to be known.
    pub proof: Proof,
    /// How it is connected.
    pub transport: Transport,
    /// The session it had before, if it says so.
    pub former: Option<Former>,
    /// What it says of itself.
    pub about: About,
    /// Where it is.
    pub peer: SocketAddr,
    /// Where it came to.
    pub local: SocketAddr,
    /// The name it asked for, if it did.
    pub server_name: Option<String>,
}

/// A session that an agent had.
#[derive(Clone, Debug)]
pub struct Former {
    /// Its id.
    pub session_id: String,
    /// [`SessionGrant::cookie`] of it.
    pub cookie: String,
}

/// What an agent says of itself. Each may be empty, and may be as long as a message.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Version of the outermost client.
    pub version: String,
    /// `name/version` of each layer.
    pub user_agent: String,
    /// Operating system.
    pub os: String,
    /// Processor.
    pub arch: String,
    /// Text of the application.
    pub metadata: String,
}

/// A session, as far as this plane has to know.
#[derive(Clone, Debug, Default)]
pub struct SessionGrant {
    /// Its id, which the agent repeats when it comes back.
    pub session_id: String,
    /// Proof of it, for the same moment.
    pub cookie: String,
    /// Shown to people.
    pub account_name: String,
    /// Shown to people.
    pub plan_name: String,
    /// How long it may last.
    pub duration: Option<Duration>,
}

/// An endpoint that an agent wants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// Empty to let the server choose; else the one chosen before, which is to be kept.
    pub id: String,
    /// [`Binding::token`] of that one.
    pub token: String,
    /// `http`, `https`, `tcp` or `tls`.
    pub proto: String,
    /// Shown to people.
    pub forwards_to: String,
    /// What the service speaks: empty, `http1` or `http2`.
    pub forwards_proto: String,
    /// Its name and how its traffic is treated.
    pub options: Options,
    /// Id of an IP policy, or empty.
    pub ip_policy: String,
    /// Text of the application.
    pub metadata: String,
    /// `public`, `internal` or `kubernetes`.
    pub bindings: Vec<String>,
    /// Whether others may share the URL.
    pub pooling_enabled: bool,
    /// What it is called.
    pub name: String,
    /// What it is for.
    pub description: String,
}

/// An endpoint that was granted.
#[derive(Clone, Debug, Default)]
pub struct Binding {
    /// Its id, towards the agent and for [`super::Bindings::dial`].
    pub id: String,
    /// Where it is reached.
    pub url: String,
    /// `host`, or `host:port`, in that URL.
    pub name: String,
    /// Proof that the agent had it.
    pub token: String,
}

/// A session that is over.
#[derive(Clone, Debug)]
pub struct SessionEnd {
    /// The grant it had.
    pub grant: Arc<SessionGrant>,
    /// Why.
    pub reason: EndReason,
    /// Whether the agent can come back to the session: clients of SSH cannot.
    pub may_return: bool,
}

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The agent closed it.
    Closed,
    /// The connection broke, and how.
    Lost(String),
    /// No heartbeat came in time.
    Silent,
    /// It lasted as long as it may.
    Expired,
    /// Somebody ended it here, and why.
    Stopped(String),
}

impl EndReason {
    /// The server stops.
    pub fn shutdown() -> Self {
        Self::Stopped("server shutdown".into())
    }

    /// Whether the agent may come back at once, as one does whose network failed. One that said
    /// goodbye does not mean to.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Silent)
    }
}

/// As events tell it (contract: events 5.1).
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
