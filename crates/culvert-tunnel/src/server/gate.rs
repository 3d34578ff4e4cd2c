//! What this plane asks of whoever knows accounts and endpoints.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{BoxFuture, Refusal};

use crate::wire::{AuthRequest, BindRequest, LabelledRequest, PatchRequest};

/// Decides. Each call may take as long as the store needs; agents are held meanwhile, because the
/// published ones come back only after minutes when they are refused twice.
pub trait Gate: Send + Sync {
    /// An agent says who it is. The grant names the session: an old one, if the agent proves that
    /// it had it, else a new one. A refusal is told to the agent as it is.
    fn admit(&self, hello: Hello) -> BoxFuture<'_, Result<Grant, Refusal>>;

    /// An agent wants an endpoint. When this is done traffic may come.
    fn bind<'a>(
        &'a self,
        grant: &'a Grant,
        want: &'a BindRequest,
    ) -> BoxFuture<'a, Result<Binding, Refusal>>;

    /// An agent offers itself under labels.
    fn bind_labels<'a>(
        &'a self,
        grant: &'a Grant,
        want: &'a LabelledRequest,
    ) -> BoxFuture<'a, Result<String, Refusal>>;

    /// An agent changes an endpoint of its own.
    fn patch<'a>(
        &'a self,
        grant: &'a Grant,
        change: &'a PatchRequest,
    ) -> BoxFuture<'a, Result<(), Refusal>>;

    /// An agent gives an endpoint up. It may have done so before.
    fn unbind<'a>(&'a self, grant: &'a Grant, id: &'a str) -> BoxFuture<'a, ()>;

    /// A session that was granted has no connection any more.
    fn ended(&self, end: SessionEnd) -> BoxFuture<'_, ()>;
}

/// An agent that says who it is.
#[derive(Debug)]
pub struct Hello {
    /// What it says.
    pub auth: AuthRequest,
    /// Where it is.
    pub peer: SocketAddr,
    /// Where it came to.
    pub local: SocketAddr,
    /// The name it asked for in TLS.
    pub server_name: Option<String>,
}

/// A session, as far as this plane has to know.
#[derive(Clone, Debug, Default)]
pub struct Grant {
    /// Its id, which the agent repeats when it comes back.
    pub session_id: String,
    /// Proof of it, for the same moment.
    pub cookie: String,
    /// Shown to people.
    pub account_name: String,
    /// Shown to people.
    pub plan_name: String,
    /// Shown to people.
    pub region: String,
    /// How long it may last.
    pub duration: Option<Duration>,
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
    pub grant: Arc<Grant>,
    /// Why.
    pub reason: EndReason,
}

/// Why a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The connection ended, without a word or with one.
    Lost(String),
    /// No heartbeat came in time.
    Silent,
    /// It lasted as long as it may.
    Expired,
    /// Somebody ended it here.
    Stopped(String),
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(how) | Self::Stopped(how) => f.write_str(how),
            Self::Silent => f.write_str("no heartbeat came in time"),
            Self::Expired => f.write_str("the session lasted as long as it may"),
        }
    }
}
