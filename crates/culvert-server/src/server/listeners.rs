//! The listeners of a server, and the addresses that they are bound to.

use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The listeners, in the order in which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Listener {
    Api,
    ApiTls,
    Http,
    Https,
    Kubernetes,
    Agents,
    Ssh,
    Nodes,
    Metrics,
}

impl Listener {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::ApiTls => "api-tls",
            Self::Http => "http",
            Self::Https => "https",
            Self::Kubernetes => "kubernetes",
            Self::Agents => "agents",
            Self::Ssh => "ssh",
            Self::Nodes => "nodes",
            Self::Metrics => "metrics",
        }
    }
}

/// The addresses that listeners are bound to.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses(BTreeMap<Listener, SocketAddr>);

impl Addresses {
    pub(super) fn insert(&mut self, listener: Listener, address: SocketAddr) {
        self.0.insert(listener, address);
    }

    pub(super) fn get(&self, listener: Listener) -> Option<SocketAddr> {
        self.0.get(&listener).copied()
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (Listener, SocketAddr)> {
        self.0
            .iter()
            .map(|(listener, address)| (*listener, *address))
    }
}
