//! The reasons why an upstream cannot be reached.

use std::io;

use culvert_io::forward_proxy::ProxyError;
use culvert_io::upstream_tls::TlsFailure;

use crate::agent::AgentRefused;
use crate::tls::TlsWithheld;

/// Why connecting failed.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The name has no address.
    #[error("the name has no address")]
    NoAddress,
    /// Too many names are being looked up for the same owner.
    #[error("too many host names are being looked up for this owner")]
    TooManyLookups,
    /// Its address is private, and private addresses are not allowed.
    #[error("the address is private, and private addresses are not allowed")]
    Private,
    /// The path of its Unix socket is not allowed.
    #[error("the path of the socket is not allowed (`edge.allow_unix_upstreams`)")]
    SocketNotAllowed,
    /// The path of its folder is not allowed.
    #[error("the path of the folder is not allowed (`edge.allow_file_upstreams`)")]
    FolderNotAllowed,
    /// It is a listener of this process.
    #[error("it is a listener of this server")]
    OwnListener,
    /// The time limit was reached.
    #[error("connecting timed out")]
    TooSlow,
    /// The network refused the connection.
    #[error("connecting: {0}")]
    Connect(io::Error),
    /// The proxy on the way made no connection.
    #[error("connecting: {0}")]
    Proxy(ProxyError),
    /// The TLS handshake failed.
    #[error("the TLS handshake failed: {}", TlsFailure::explain(.0))]
    Tls(io::Error),
    /// The options of TLS cannot be met.
    #[error("no TLS handshake: {0}")]
    TlsWithheld(TlsWithheld),
    /// No agent accepted a stream.
    #[error("{0}")]
    Agent(AgentRefused),
}

impl DialError {
    /// Whether no agent serves the endpoint now.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Agent(AgentRefused::Away))
    }

    /// Whether this process lacks what a connection needs, such as a file descriptor, a port or a place for a lookup: nothing
    /// about the upstream.
    pub fn is_local(&self) -> bool {
        // EMFILE, ENFILE, EADDRNOTAVAIL, ENOBUFS, ENOMEM of Linux.
        const LACKING: [i32; 5] = [24, 23, 99, 105, 12];
        match self {
            Self::TooManyLookups => true,
            Self::Connect(error) => {
                let code = error.raw_os_error();
                code.is_some_and(|code| LACKING.contains(&code))
            }
            _ => false,
        }
    }

    /// Whether waiting may help.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Agent(AgentRefused::Busy))
    }
}
