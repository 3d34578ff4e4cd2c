//! The address at which an endpoint is found.

use std::sync::Arc;

use culvert_base::net::HostName;
use culvert_policy::scheme::Scheme;

use crate::snapshot::endpoint::Endpoint;

/// Where an endpoint is found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum EndpointAddress {
    /// By its public port alone: TCP.
    Port(u16),
    Host(Scheme, HostName),
    Internal(Arc<str>, Scheme, HostName, u16),
}

impl EndpointAddress {
    pub(super) fn of(endpoint: &Endpoint) -> Self {
        let host = endpoint.host.clone();
        match endpoint.scheme {
            scheme if endpoint.is_internal => {
                Self::Internal(Arc::clone(&endpoint.account), scheme, host, endpoint.port)
            }
            Scheme::Tcp => Self::Port(endpoint.port),
            scheme => Self::Host(scheme, host),
        }
    }
}
