//! Opens connections to upstreams on behalf of a client's connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::upstream::agent::{AgentRefused, Dial};
use crate::upstream::fetch::Network;
use crate::upstream::ports::PoolOwner;
use crate::upstream::url::{DialError, UpWire, Upstream};

/// What it takes to connect to upstreams, and the client's connection that this is for.
#[derive(Debug)]
pub(crate) struct Connector<'x, E> {
    pub(crate) owner: &'x Arc<E>,
    pub(crate) network: &'x Network,
    pub(crate) agents: Option<&'x dyn Dial>,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    /// Whether the edge terminated the TLS of the client's connection.
    pub(crate) is_tls_terminated: bool,
}

impl<E: PoolOwner> Connector<'_, E> {
    /// A new connection to an upstream, within `limit`. With `in_turn`, waits until an agent has capacity.
    pub(crate) async fn dial(
        &self,
        to: &Upstream,
        limit: Duration,
        in_turn: bool,
    ) -> Result<UpWire, DialError> {
        self.owner.connects().up();
        let dialled = match (to.agents_endpoint(), self.agents) {
            (None, _) => {
                let dialer = self.network.dialer.load_full();
                dialer.dial_within(limit, to).await
            }
            (Some(_), None) => Err(DialError::Agent(AgentRefused::Away)),
            (Some(_), Some(agents)) => {
                let ends = (self.client, self.server);
                UpWire::to_agent(agents, to, ends, self.is_tls_terminated, in_turn).await
            }
        };
        if dialled.is_err() {
            self.owner.connects_failed().up();
        }
        dialled
    }
}
