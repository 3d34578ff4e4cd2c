//! The address at which an endpoint is found.

use std::sync::Arc;

use culvert_base::net::HostName;
use culvert_edge_config::{Endpoint, EndpointBinding};
use culvert_policy::scheme::Scheme;

/// Where an endpoint is found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum EndpointAddress {
    /// By its public port alone: TCP.
    Port(u16),
    Host(Scheme, HostName),
    Internal(Arc<str>, Scheme, HostName, u16),
    /// By what Kubernetes operators name: a host and a port.
    Kubernetes(Arc<str>, HostName, u16),
}

impl EndpointAddress {
    pub(super) fn of(endpoint: &Endpoint) -> Self {
        let host = endpoint.host.clone();
        let account = || Arc::clone(&endpoint.account);
        match (&endpoint.binding, endpoint.scheme) {
            (EndpointBinding::Internal, scheme) => {
                Self::Internal(account(), scheme, host, endpoint.port)
            }
            (EndpointBinding::Kubernetes(_), _) => Self::Kubernetes(account(), host, endpoint.port),
            (EndpointBinding::Public, Scheme::Tcp) => Self::Port(endpoint.port),
            (EndpointBinding::Public, scheme) => Self::Host(scheme, host),
        }
    }
}
