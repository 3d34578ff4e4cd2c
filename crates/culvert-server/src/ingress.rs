//! Agents of this process: their authorization, and the names and the TLS of their listener.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::Result;
use culvert_base::net::HostName;
use culvert_base::{BoxFuture, Refusal};
use culvert_edge::Edge;
use culvert_tunnel::server::{
    AgentAuthRequest, AgentAuthorizer, Binding, EndpointRequest, SessionEnd, SessionGrant,
};
use culvert_tunnel::wire::{LabelledRequest, PatchRequest};
use rustls::ServerConfig;
use rustls::server::ResolvesServerCert;

use culvert_installation::config::Settings;

/// Authorizes agents. New sessions wait while the edge is overloaded; reconnects to an existing session do not.
pub(crate) struct Waiting {
    pub(crate) authorizer: Arc<dyn AgentAuthorizer>,
    pub(crate) edge: Edge,
}

impl AgentAuthorizer for Waiting {
    fn authorize(&self, hello: AgentAuthRequest) -> BoxFuture<'_, Result<SessionGrant, Refusal>> {
        Box::pin(async move {
            if hello.former.is_none() {
                self.edge.takes_agents().await;
            }
            self.authorizer.authorize(hello).await
        })
    }

    fn next_tcp_port<'a>(&'a self, grant: &'a SessionGrant) -> BoxFuture<'a, Option<u16>> {
        self.authorizer.next_tcp_port(grant)
    }

    fn bind<'a>(
        &'a self,
        grant: &'a SessionGrant,
        want: &'a EndpointRequest,
    ) -> BoxFuture<'a, Result<Binding, Refusal>> {
        self.authorizer.bind(grant, want)
    }

    fn bind_labels<'a>(
        &'a self,
        grant: &'a SessionGrant,
        want: &'a LabelledRequest,
    ) -> BoxFuture<'a, Result<String, Refusal>> {
        self.authorizer.bind_labels(grant, want)
    }

    fn patch<'a>(
        &'a self,
        grant: &'a SessionGrant,
        change: &'a PatchRequest,
    ) -> BoxFuture<'a, Result<(), Refusal>> {
        self.authorizer.patch(grant, change)
    }

    fn unbind<'a>(&'a self, grant: &'a SessionGrant, id: &'a str) -> BoxFuture<'a, ()> {
        self.authorizer.unbind(grant, id)
    }

    fn ended(&self, end: SessionEnd) -> BoxFuture<'_, ()> {
        self.authorizer.ended(end)
    }
}

/// Names and addresses that agents may dial, the most likely first: those of the settings, those
/// in the platform domain, and those of this machine.
pub(crate) fn names(settings: &Settings, domain: &HostName) -> Vec<String> {
    let bound = settings.agents.addr.parse::<std::net::SocketAddr>();
    let bound = bound.ok().map(|address| address.ip());
    let own = [
        format!("connect.{domain}"),
        domain.to_string(),
        "localhost".to_owned(),
        settings.node(),
        "127.0.0.1".to_owned(),
        "::1".to_owned(),
    ];
    let bound = bound.filter(|address| !address.is_unspecified());
    let all = settings.agents.names.iter().cloned().chain(own);
    let mut names: Vec<String> = Vec::new();
    for name in all.chain(bound.map(|address| address.to_string())) {
        let name = match (name.parse::<IpAddr>(), HostName::parse(&name)) {
            (Ok(address), _) => address.to_string(),
            (_, Ok(host)) => host.to_string(),
            // A node name may be any text.
            (Err(_), Err(_)) => continue,
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The TLS configuration of a listener for agents or the API, with the protocols that it offers by ALPN.
pub(crate) fn tls(
    certificate: Arc<dyn ResolvesServerCert>,
    protocols: &[&str],
) -> Result<Arc<ServerConfig>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    let protocols = protocols.iter().map(|name| name.as_bytes().to_vec());
    config.alpn_protocols = protocols.collect();
    Ok(Arc::new(config))
}
