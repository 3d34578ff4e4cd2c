//! Opens connections to upstreams on behalf of a client's connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::Share;
use culvert_io::proxy::{self, ProxyAddresses};

use crate::agent::{AgentRefused, Dial};
use crate::dial_error::DialError;
use crate::fetch::Network;
use crate::names::LookupFor;
use crate::ports::PoolOwner;
use crate::stream::UpstreamStream;
use crate::upstream::Upstream;

/// Connects to upstreams for the connection of a client.
#[derive(Debug)]
pub struct Connector<'x, E> {
    /// Runs the tasks of connections, and counts them.
    pub owner: &'x Arc<E>,
    /// Connects to hosts.
    pub network: &'x Network,
    /// Opens streams to agents, if there are any.
    pub agents: Option<&'x dyn Dial>,
    /// The address of the client.
    pub client: SocketAddr,
    /// The address that the client connected to.
    pub server: SocketAddr,
    /// Whose limited resources its connections take.
    pub share: Share,
    /// What names are looked up for.
    pub lookup_for: LookupFor,
    /// Whether this process terminated the TLS of the client's connection.
    pub is_tls_terminated: bool,
}

impl<E: PoolOwner> Connector<'_, E> {
    /// The PROXY header of a connection, if the upstream expects one.
    fn proxy_header(&self, to: &Upstream) -> Option<Vec<u8>> {
        let version = to.proxy()?;
        Some(match self.lookup_for {
            // They are no client's.
            LookupFor::Checks => proxy::encode_own(version),
            LookupFor::Traffic | LookupFor::Calls => {
                let (client, server) = (self.client, self.server);
                proxy::encode(version, ProxyAddresses { client, server })
            }
        })
    }

    /// A new connection to an upstream, within `limit`. With `in_turn`, waits until an agent has capacity.
    pub(crate) async fn dial(
        &self,
        to: &Upstream,
        limit: Duration,
        in_turn: bool,
    ) -> Result<UpstreamStream, DialError> {
        self.owner.connects().up();
        let dialled = match (to.agents_endpoint(), self.agents) {
            (None, _) => {
                let dialer = self.network.dialer.load_full();
                let lookup = (self.lookup_for, self.share);
                let header = self.proxy_header(to);
                dialer.dial_within(limit, to, lookup, header).await
            }
            (Some(_), None) => Err(DialError::Agent(AgentRefused::Away)),
            (Some(_), Some(agents)) => {
                let ends = (self.client, self.server);
                UpstreamStream::to_agent(agents, to, ends, self.is_tls_terminated, in_turn).await
            }
        };
        if dialled.is_err() {
            self.owner.connects_failed().up();
        }
        dialled
    }
}
