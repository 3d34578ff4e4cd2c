//! What an agent reports: events as they happen, and its status.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::diagnosis;
use super::endpoint::Endpoint;
use super::meter::EndpointMeters;

/// An event of an agent.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The agent connects to a server.
    Connecting {
        /// `host:port`.
        address: String,
    },
    /// The agent is connected to a server, which has not authorized it yet.
    Connected {
        /// `host:port`.
        address: String,
    },
    /// The session and all its endpoints are established.
    Online {
        /// Its id.
        session_id: String,
        /// Whether an earlier session was resumed.
        again: bool,
    },
    /// An endpoint is established.
    Bound {
        /// The index of the agent's endpoint.
        endpoint: usize,
        /// The public URL.
        url: String,
        /// The service.
        upstream: String,
        /// Whether it had this URL before.
        again: bool,
    },
    /// The session ended or could not be established.
    Waiting {
        /// `host:port` of the server.
        address: String,
        /// The reason.
        why: String,
        /// The delay before the next attempt.
        after: Duration,
    },
    /// A service is unreachable.
    Unreached {
        /// The service.
        upstream: String,
        /// The reason.
        why: String,
    },
    /// The server stopped an endpoint.
    Taken {
        /// The public URL.
        url: String,
        /// The server's message.
        message: String,
    },
    /// The server sent a stop or restart command.
    Asked {
        /// The command.
        command: &'static str,
    },
}

/// Receives events, on the task of the session.
pub type Observer = Arc<dyn Fn(Event) + Send + Sync>;

/// The status of an agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// The current activity.
    pub phase: Phase,
    /// `host:port` of the server.
    pub server: String,
    /// Since when there is no session, and why. `None` while there is one, and before the first attempt ended.
    pub trouble: Option<SessionTrouble>,
    /// The session's id; empty before the first session.
    pub session_id: String,
    /// The account's name.
    pub account: String,
    /// The server's region.
    pub region: String,
    /// The server's version.
    pub server_version: String,
    /// Messages of the server for the user: its banner and its notice that this version of the agent is too old.
    pub notices: Vec<String>,
    /// The round-trip time of the last heartbeat.
    pub latency: Option<Duration>,
    /// All requested endpoints.
    pub endpoints: Vec<EndpointStatus>,
}

/// Why an agent has no session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionTrouble {
    /// When the last session ended, or the first attempt failed.
    pub since: Instant,
    /// The reason that the last attempt failed.
    pub why: String,
}

/// The activity of an agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// It connects or authenticates.
    #[default]
    Connecting,
    /// It serves.
    Online,
    /// It waits before it reconnects.
    Waiting,
    /// It finishes open requests and connections.
    Stopping,
}

/// The status of an endpoint.
#[derive(Clone, Debug, Default)]
pub struct EndpointStatus {
    /// The user's name for it; may be empty.
    pub name: String,
    /// The server's id for it; empty before it is first established.
    pub id: String,
    /// The public URL; empty before it is first established.
    pub url: String,
    /// `http`, `https`, `tcp` or `tls`.
    pub protocol: &'static str,
    /// The service.
    pub upstream: String,
    /// Whether its requests are recorded, if the agent records requests.
    pub is_inspected: bool,
    /// Whether the server or the user stopped it.
    pub is_gone: bool,
    /// Counts its connections and requests.
    pub meters: Arc<EndpointMeters>,
}

impl EndpointStatus {
    /// The status of an endpoint that was never established.
    pub(super) fn of(endpoint: &Endpoint) -> Self {
        Self {
            name: endpoint.name.clone(),
            protocol: endpoint.protocol.as_str(),
            upstream: endpoint.upstream.as_str().to_owned(),
            is_inspected: endpoint.is_inspected,
            meters: Arc::clone(&endpoint.meters),
            ..Self::default()
        }
    }
}

impl PartialEq for EndpointStatus {
    /// Compares everything but the meters.
    fn eq(&self, other: &Self) -> bool {
        let key = |it: &Self| {
            (
                it.name.clone(),
                it.id.clone(),
                it.url.clone(),
                it.protocol,
                it.upstream.clone(),
                it.is_gone,
            )
        };
        key(self) == key(other)
    }
}

/// Why an agent ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentError {
    /// The server refused permanently, with a message and perhaps the number of an error code.
    Refused(String, Option<u16>),
    /// No connection to the server was possible for this reason, which a user must correct.
    Mistaken(String),
    /// The server stopped the last endpoint, with this message.
    Taken(String),
    /// The agent was stopped, and this many connections were still open at the end of the drain time.
    Cut(usize),
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(text, Some(code)) => {
                write!(f, "{text} (ERR_NGROK_{code})")?;
                match diagnosis::remedy(*code) {
                    "" => Ok(()),
                    remedy => write!(f, "; {remedy}"),
                }
            }
            Self::Refused(text, None) | Self::Mistaken(text) | Self::Taken(text) => {
                f.write_str(text)
            }
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
