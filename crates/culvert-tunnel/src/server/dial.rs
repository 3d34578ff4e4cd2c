//! Opens a stream on one of several connections.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use culvert_mux::{OpenRefused, Source};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::accept::block_of;
use crate::driver::{Session, Stream};
use crate::wire::{self, ProxyHeader};

/// Why a stream to an endpoint could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialError {
    /// No agent serves it.
    Away,
    /// Every agent that serves it is at its stream limit.
    Busy,
    /// The connections of the agents that serve it carry nothing.
    Silent,
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Away => "no agent serves the endpoint",
            Self::Busy => "all agents of the endpoint are busy",
            Self::Silent => "no agent of the endpoint responds",
        })
    }
}

impl std::error::Error for DialError {}

/// How long a caller waits for a stream if all are in use.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Opens a stream on the first of `sessions` with capacity.
pub(crate) fn open_first(
    sessions: impl IntoIterator<Item = Session>,
    first: impl Fn() -> Bytes,
    open: impl Fn(&Session, Bytes) -> Result<Stream, OpenRefused>,
) -> Result<Stream, DialError> {
    let mut failed = DialError::Away;
    for session in sessions {
        if session.is_silent() {
            if failed == DialError::Away {
                failed = DialError::Silent;
            }
            continue;
        }
        match open(&session, first()) {
            Ok(stream) => return Ok(stream),
            Err(OpenRefused::Full | OpenRefused::TooLong) => failed = DialError::Busy,
            Err(OpenRefused::Ended | OpenRefused::Exhausted) => {}
        }
    }
    Err(failed)
}

/// As [`open_first`], but if all are full, queues at each of them, for at most [`PATIENCE`].
pub(crate) async fn open_in_turn(
    sessions: impl Fn() -> Vec<Session>,
    first: impl Fn() -> Bytes,
    source: Source,
) -> Result<Stream, DialError> {
    let waiting = async {
        loop {
            let sessions = sessions();
            let mut queued: FuturesUnordered<_> = sessions.iter().map(Session::queue).collect();
            // Earlier callers go first.
            if queued.next().await.is_none() {
                return Err(DialError::Away);
            }
            let open = |session: &Session, first| session.open_for(source, first);
            match open_first(sessions, &first, open) {
                Err(DialError::Busy) => {}
                opened => return opened,
            }
        }
    };
    tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap_or(Err(DialError::Busy))
}

/// The client of a stream, by which agents' streams are shared: its IPv4 address, or the /64 of its IPv6 address.
pub(crate) fn source_of(header: &ProxyHeader) -> Source {
    if header.client_addr == wire::MANY_CLIENTS {
        return Source::default();
    }
    let Ok(client) = header.client_addr.parse::<SocketAddr>() else {
        return Source::default();
    };
    Source(match block_of(client.ip()) {
        // No block of IPv6 has this prefix.
        IpAddr::V4(address) => 0xFFFF_FFFF << 32 | u64::from(address.to_bits()),
        IpAddr::V6(block) => (block.to_bits() >> 64) as u64,
    })
}
