//! The connections between this process and the other nodes of its installation.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use anyhow::{Context, Result};
use culvert_base::Timestamp;
use culvert_edge::Inherited;
use culvert_tunnel::nodes::{Identity, Nodes};
use tokio::net::TcpListener;

use crate::server::listen;
use culvert_installation::config::Settings;

/// The membership of this process in an installation that may have other nodes.
#[derive(Debug, Default)]
pub(crate) struct Membership {
    /// Connections to the other nodes.
    pub(crate) nodes: Option<Arc<Nodes>>,
    /// When to renew the certificate.
    pub(crate) renew_at: Timestamp,
    /// The listener for other nodes, if this node accepts agents.
    pub(crate) listener: Option<TcpListener>,
    pub(crate) local_addr: Option<SocketAddr>,
    /// The address of the listener for other nodes; empty for none.
    pub(crate) address: String,
}

impl Membership {
    /// Binds the listener if `takes_agents`.
    pub(crate) async fn new(
        settings: &Settings,
        identity: Identity,
        renew_at: Timestamp,
        takes_agents: bool,
        inherited: &Inherited,
    ) -> Result<Self> {
        let nodes = Nodes::new(identity).context("configuring TLS with other nodes")?;
        let mut membership = Self {
            nodes: Some(Arc::new(nodes)),
            renew_at,
            ..Self::default()
        };
        if takes_agents && !settings.nodes.addr.is_empty() {
            let listener = listen("nodes.addr", &settings.nodes.addr, inherited).await?;
            let bound = listener.local_addr()?;
            membership.address = match settings.nodes.advertised_addr.as_str() {
                "" => advertised(bound, &settings.database_url).to_string(),
                given => given.to_owned(),
            };
            membership.local_addr = Some(bound);
            membership.listener = Some(listener);
        }
        Ok(membership)
    }
}

/// The bound address. If it is unspecified, uses the local address from which the database is reached.
pub(crate) fn advertised(bound: SocketAddr, database_url: &str) -> SocketAddr {
    if !bound.ip().is_unspecified() {
        return bound;
    }
    let own = towards(database_url).unwrap_or(Ipv4Addr::LOCALHOST.into());
    SocketAddr::new(own, bound.port())
}

/// The local address from which packets to the host of a URL leave. Sends nothing.
fn towards(url: &str) -> Option<IpAddr> {
    let url = url::Url::parse(url).ok()?;
    let host = url.host_str()?.trim_matches(['[', ']']).to_owned();
    let port = url.port().unwrap_or(5432);
    for any in ["0.0.0.0:0", "[::]:0"] {
        let Ok(socket) = UdpSocket::bind(any) else {
            continue;
        };
        if socket.connect((host.as_str(), port)).is_ok() {
            return Some(socket.local_addr().ok()?.ip());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_nodes_can_reach_the_advertised_address() {
        let address = |bound: &str, url| advertised(bound.parse().unwrap(), url).to_string();
        assert_eq!(address("10.0.0.7:8442", ""), "10.0.0.7:8442");
        let near = "postgres://u:p@127.0.0.1:5432/d";
        assert_eq!(address("0.0.0.0:8442", near), "127.0.0.1:8442");
        assert_eq!(
            address("0.0.0.0:8442", "postgres:///d?host=/run"),
            "127.0.0.1:8442"
        );
    }
}
