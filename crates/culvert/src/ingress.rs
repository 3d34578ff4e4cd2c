//! Agents of this process: their listener, its certificate, and the edge's connections to their services.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use anyhow::Result;
use bytes::Bytes;
use culvert_base::net::HostName;
use culvert_base::{BoxFuture, Refusal};
use culvert_edge::{AgentCall, AgentIo, AgentRefused, Dial, Edge};
use culvert_policy::Scheme;
use culvert_tunnel::driver::{self, Stream};
use culvert_tunnel::nodes::{self, Nodes};
use culvert_tunnel::server::{
    AgentAuthRequest, AgentAuthorizer, Binding, Bindings, DialError, EndpointRequest, SessionEnd,
    SessionGrant,
};
use culvert_tunnel::wire::{self, LabelledRequest, PatchRequest, ProxyHeader};
use rustls::ServerConfig;
use rustls::server::ResolvesServerCert;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::config::Settings;

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

/// The edge's connections to agents: first those of this process, then those of other nodes.
#[derive(Debug)]
pub(crate) struct ToAgents {
    pub(crate) here: Option<Arc<Bindings>>,
    pub(crate) elsewhere: Option<Arc<Nodes>>,
}

/// A stream to an agent, as used by the edge.
#[derive(Debug)]
struct Carried {
    stream: Stream,
    /// The agents of this process and the id of the endpoint; `None` for an agent of another node.
    here: Option<(Arc<Bindings>, String)>,
}

impl AgentIo for Carried {
    fn poll_read_bytes(
        &mut self,
        cx: &mut Context<'_>,
        bytes_max: usize,
    ) -> Poll<io::Result<Bytes>> {
        let read = self.stream.poll_read_bytes(cx, bytes_max);
        read.map_err(agent_error)
    }

    /// Streams through another node are not kept for reuse: that node could not use them for its own clients, and
    /// this node does not learn immediately when an endpoint goes offline there.
    fn rest(&mut self) -> bool {
        if self.here.is_none() {
            self.stream.end_in_order();
            return false;
        }
        self.stream.rest()
    }

    /// A stream is not reused if its agent no longer serves the endpoint.
    fn resume(&mut self) -> bool {
        let is_served = |(bindings, id): &(Arc<Bindings>, String)| bindings.count(id) > 0;
        self.here.as_ref().is_some_and(is_served) && self.stream.resume()
    }

    fn end(&mut self) {
        self.stream.end_in_order();
    }
}

/// Converts errors for the edge. An agent that rejected a stream is busy; a reset code may say that it is no longer
/// at the node.
fn agent_error(error: io::Error) -> io::Error {
    if driver::is_refused(&error) {
        return io::Error::new(error.kind(), AgentRefused::Busy);
    }
    match driver::reset_code(&error) {
        Some(nodes::AWAY) => io::Error::new(error.kind(), AgentRefused::Away),
        _ => error,
    }
}

impl AsyncRead for Carried {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream)
            .poll_read(cx, buf)
            .map_err(agent_error)
    }
}

impl AsyncWrite for Carried {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream)
            .poll_write(cx, buf)
            .map_err(agent_error)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        written.map_err(agent_error)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn header(call: &AgentCall<'_>) -> ProxyHeader {
    ProxyHeader {
        id: call.endpoint.to_owned(),
        client_addr: match call.client {
            Some(client) => client.to_string(),
            None => wire::MANY_CLIENTS.to_owned(),
        },
        proto: call.scheme.name().to_owned(),
        edge_type: match call.scheme {
            Scheme::Tcp => "1",
            Scheme::Tls => "2",
            Scheme::Http | Scheme::Https => "3",
        }
        .to_owned(),
        passthrough_tls: call.passes_tls,
    }
}

impl ToAgents {
    /// Converts the result of opening a stream to an agent of this process.
    fn here(
        &self,
        opened: Result<Stream, DialError>,
        id: String,
    ) -> Result<Box<dyn AgentIo>, AgentRefused> {
        let here = self.here.clone().map(|bindings| (bindings, id));
        carried(opened, here)
    }
}

fn carried(
    opened: Result<Stream, DialError>,
    here: Option<(Arc<Bindings>, String)>,
) -> Result<Box<dyn AgentIo>, AgentRefused> {
    match opened {
        Ok(stream) => Ok(Box::new(Carried { stream, here })),
        Err(DialError::Away) => Err(AgentRefused::Away),
        Err(DialError::Busy) => Err(AgentRefused::Busy),
    }
}

impl Dial for ToAgents {
    fn dial(&self, call: &AgentCall<'_>) -> Result<Box<dyn AgentIo>, AgentRefused> {
        let header = header(call);
        let here = match &self.here {
            Some(bindings) => bindings.dial(&header),
            None => Err(DialError::Away),
        };
        match (here, &self.elsewhere) {
            (Err(DialError::Away), Some(nodes)) => carried(nodes.dial(&header), None),
            (here, _) => self.here(here, header.id),
        }
    }

    fn dial_in_turn<'a>(
        &'a self,
        call: AgentCall<'a>,
    ) -> BoxFuture<'a, Result<Box<dyn AgentIo>, AgentRefused>> {
        Box::pin(async move {
            let header = header(&call);
            let here = match &self.here {
                Some(bindings) => bindings.dial_in_turn(&header).await,
                None => Err(DialError::Away),
            };
            match (here, &self.elsewhere) {
                (Err(DialError::Away), Some(nodes)) => {
                    carried(nodes.dial_in_turn(&header).await, None)
                }
                (here, _) => self.here(here, header.id),
            }
        })
    }

    fn is_online(&self, endpoint: &str) -> bool {
        let has = |bindings: &Arc<Bindings>| bindings.count(endpoint) > 0;
        self.here.as_ref().is_some_and(has)
            || self
                .elsewhere
                .as_ref()
                .is_some_and(|nodes| nodes.is_online(endpoint))
    }

    fn may_return(&self, endpoint: &str) -> bool {
        // Neither check takes a lock unless an endpoint was lost recently.
        let here = self.here.as_ref();
        let elsewhere = self.elsewhere.as_ref();
        let is_lost = here.is_some_and(|bindings| bindings.has_just_lost(endpoint))
            || elsewhere.is_some_and(|nodes| nodes.has_just_lost(endpoint));
        is_lost && !self.is_online(endpoint)
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
