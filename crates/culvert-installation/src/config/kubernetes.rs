//! The settings of the bindings of Kubernetes operators.

use std::net::SocketAddr;

use culvert_base::net::HostName;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Invalid;

/// The label below the platform domain at which operators connect by default.
const LABEL: &str = "kubernetes-binding-ingress";

/// Bindings of Kubernetes operators.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Kubernetes {
    /// Listen address for Kubernetes operators, which connect with TLS and a client certificate
    /// to reach endpoints with the binding `kubernetes`; empty to disable. Port 0 selects a free
    /// port.
    pub addr: String,
    /// Address as `host:port` that operators dial. Empty: `kubernetes-binding-ingress.` plus
    /// `edge.domain`, with the port of `kubernetes.addr`. The host needs a certificate: of the
    /// installation's own CA if it is directly below `edge.domain`, otherwise one of
    /// `edge.certificates` or of a reserved domain.
    pub ingress_endpoint: String,
}

impl Kubernetes {
    /// The host that operators dial.
    pub fn host(&self, domain: &HostName) -> String {
        match self.ingress_endpoint.rsplit_once(':') {
            Some((host, _)) => host.to_owned(),
            None => format!("{LABEL}.{domain}"),
        }
    }

    /// The address that operators dial; empty if they cannot. `bound` is the address of this process's listener.
    pub fn ingress(&self, domain: &HostName, bound: Option<SocketAddr>) -> String {
        if !self.ingress_endpoint.is_empty() {
            return self.ingress_endpoint.clone();
        }
        match bound.or_else(|| self.addr.parse().ok()) {
            Some(address) => format!("{}:{}", self.host(domain), address.port()),
            None => String::new(),
        }
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        let endpoint = &self.ingress_endpoint;
        let is_address = endpoint.rsplit_once(':').is_some_and(|(host, port)| {
            HostName::parse(host).is_ok_and(|name| *name == *host)
                && port.parse::<u16>().is_ok_and(|port| port > 0)
        });
        if endpoint.is_empty() || is_address {
            return Ok(());
        }
        Err(Invalid(format!(
            "`kubernetes.ingress_endpoint` must be `host:port` with a host name in lower case, not `{endpoint}`"
        )))
    }
}
