//! The rules of a connection, as of its accept.

use std::net::IpAddr;
use std::sync::Arc;

use culvert_edge_config::Limits;
use culvert_events::HeaderRules;
use culvert_policy::{ErrorPages, OnExpressionError};

/// The protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenerKind {
    /// Plain HTTP.
    Http,
    /// TLS, terminated here or passed through.
    Tls,
    /// Raw TCP for the endpoint of this public port.
    Tcp(u16),
    /// TLS of Kubernetes operators, which name an endpoint after the handshake.
    Kubernetes,
}

/// The peers whose connections begin with a PROXY header. Other peers are clients themselves, and no header is
/// read from them.
#[derive(Clone, Debug, Default)]
pub struct ProxyProtocol {
    /// Networks whose connections begin with a header, of version 1 or 2.
    pub from: Vec<ipnet::IpNet>,
    /// Whether this applies to the plain HTTP listener.
    pub http: bool,
    /// Whether this applies to the TLS listener.
    pub https: bool,
    /// Whether this applies to the ports of TCP endpoints.
    pub tcp: bool,
    /// Whether this applies to the listener for Kubernetes operators.
    pub kubernetes: bool,
}

/// The rules of a connection, as of its accept.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) limits: Limits,
    pub(crate) header_rules: Arc<HeaderRules>,
    pub(crate) underscore_headers: bool,
    pub(crate) redirect_http: bool,
    pub(crate) tls12_without_ems: bool,
    /// The server name of clients that send none; empty for none.
    pub(crate) default_server_name: Box<str>,
    pub(crate) on_expression_error: OnExpressionError,
    pub(crate) allows_public_calls: bool,
    pub(crate) trusted_proxies: Vec<ipnet::IpNet>,
    pub(crate) proxy_protocol: ProxyProtocol,
    pub(crate) error_pages: Arc<ErrorPages>,
}

impl Rules {
    /// Whether a connection of this peer to this kind of listener begins with a header of the PROXY
    /// protocol.
    pub(crate) fn is_announced(&self, kind: ListenerKind, peer: IpAddr) -> bool {
        let announced = &self.proxy_protocol;
        let is_on = match kind {
            ListenerKind::Http => announced.http,
            ListenerKind::Tls => announced.https,
            ListenerKind::Tcp(_) => announced.tcp,
            ListenerKind::Kubernetes => announced.kubernetes,
        };
        is_on && announced.from.iter().any(|network| network.contains(&peer))
    }

    /// Whether forwarding headers of this peer are trusted.
    pub(crate) fn trusts(&self, peer: IpAddr) -> bool {
        self.trusted_proxies
            .iter()
            .any(|network| network.contains(&peer))
    }
}
