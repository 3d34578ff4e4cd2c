//! What an agent reports: events as they happen, and its status.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Something an agent tells as it happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The server is dialled.
    Connecting {
        /// `host:port`.
        address: String,
    },
    /// The session is there, and all of its endpoints.
    Online {
        /// Its id.
        session_id: String,
        /// Whether it was there before.
        again: bool,
    },
    /// An endpoint is there.
    Bound {
        /// Which of the agent's endpoints.
        endpoint: usize,
        /// Where it is reached.
        url: String,
        /// The service.
        upstream: String,
    },
    /// The session ended, or did not come to be.
    Waiting {
        /// Why.
        why: String,
        /// When it is tried again.
        after: Duration,
    },
    /// A service is not there.
    Unreached {
        /// The service.
        upstream: String,
        /// Why.
        why: String,
    },
    /// The server took an endpoint away.
    Taken {
        /// Where it was reached.
        url: String,
        /// What the server says.
        message: String,
    },
    /// The server asked for an end, or a new beginning.
    Asked {
        /// Which.
        command: &'static str,
    },
}

/// Hears of events; it must not wait.
pub type Observer = Arc<dyn Fn(Event) + Send + Sync>;

/// How an agent stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// What it does.
    pub phase: Phase,
    /// Of the session; empty before the first.
    pub session_id: String,
    /// Whose it is.
    pub account: String,
    /// Of the server.
    pub region: String,
    /// Of the server.
    pub server_version: String,
    /// What the last heartbeat took.
    pub latency: Option<Duration>,
    /// All that it asked for.
    pub endpoints: Vec<EndpointStatus>,
}

/// What an agent does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// It dials, or introduces itself.
    #[default]
    Connecting,
    /// It serves.
    Online,
    /// It waits to dial again.
    Waiting,
    /// It finishes what is on its way.
    Stopping,
}

/// How an endpoint stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointStatus {
    /// Of the user's choice; may be empty.
    pub name: String,
    /// At the server; empty before the first time.
    pub id: String,
    /// Where it is reached; empty before the first time.
    pub url: String,
    /// `http`, `https`, `tcp` or `tls`.
    pub protocol: &'static str,
    /// The service.
    pub upstream: String,
    /// Whether the server took it away.
    pub is_gone: bool,
}

/// Why an agent gave up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentError {
    /// The server refused, with the sentence and perhaps the number of the code.
    Refused(String, Option<u16>),
    /// The server took the last endpoint away and said why.
    Taken(String),
    /// The agent was stopped, and this many connections were still open at the end of the drain time.
    Cut(usize),
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(text, Some(code)) => write!(f, "{text} (ERR_NGROK_{code})"),
            Self::Refused(text, None) | Self::Taken(text) => f.write_str(text),
            Self::Cut(1) => f.write_str("1 connection was closed at the end of the drain time"),
            Self::Cut(count) => {
                write!(
                    f,
                    "{count} connections were closed at the end of the drain time"
                )
            }
        }
    }
}

impl std::error::Error for AgentError {}
