//! How the edge is set up: its settings, and the limits of connections and messages ([`rules`], [`bounds`]).

pub(crate) mod bounds;
pub(crate) mod rules;
pub(crate) mod tracing;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use culvert_base::net::{AllowedPaths, HostName};
use culvert_base::{Entropy, Fault, OsEntropy, Supervisor};
use culvert_edge_config::Limits;
use culvert_events::HeaderRules;
use culvert_io::Inherited;
use culvert_io::forward_proxy::Proxies;
use culvert_overload::WriteDelay;
use culvert_policy::ipdata::IpDatabases;
use culvert_policy::shared_counts::SharedCounts;
use culvert_policy::{ErrorPages, OnExpressionError};
use culvert_statistics::Traffic;
use culvert_tls::server_certificate::ServerCertificate;
use culvert_upstream::{AddressGuard, Dial, Dialer};
use rustls::sign::CertifiedKey;
use rustls_pki_types::CertificateDer;

use crate::settings::rules::{ProxyProtocol, Rules};
use crate::settings::tracing::Tracing;
use crate::snapshot::route::Hosts;

/// Most endpoints whose traffic is counted apart, by default.
const ENDPOINTS_MAX: usize = 10_000;

/// Addresses, trust and limits of an edge.
#[derive(Clone)]
pub struct Settings {
    /// Where plain HTTP is accepted; nowhere if `None`. Port 0 picks a free one.
    pub http_addr: Option<SocketAddr>,
    /// Where TLS is accepted; nowhere if `None`.
    pub https_addr: Option<SocketAddr>,
    /// Where Kubernetes operators connect; nowhere if `None`.
    pub kubernetes_addr: Option<SocketAddr>,
    /// The host whose certificate operators see that name none, or one without a certificate.
    pub kubernetes_host: String,
    /// Sockets used where they listen on an address that is wanted.
    pub inherited: Inherited,
    /// The address on which the ports of TCP endpoints are opened.
    pub tcp_bind_ip: IpAddr,
    /// Networks whose forwarding headers are trusted and continued.
    pub trusted_proxies: Vec<ipnet::IpNet>,
    /// Where connections begin with a header of the PROXY protocol.
    pub proxy_protocol: ProxyProtocol,
    /// Whether upstreams may be at addresses that are not public.
    pub allow_private_upstreams: bool,
    /// Unix sockets that upstreams may be at.
    pub allow_unix_upstreams: AllowedPaths,
    /// Folders whose files upstreams may serve.
    pub allow_file_upstreams: AllowedPaths,
    /// Networks that may be connected to although their addresses are not public.
    pub allow_networks: Vec<ipnet::IpNet>,
    /// Proxies of the requests that policies send and of the documents that they read. Upstreams have none.
    pub proxies: Proxies,
    /// Root certificates trusted for `https` upstreams besides the system's.
    pub upstream_roots: Vec<CertificateDer<'static>>,
    /// Certificates with their keys beside those of snapshots, by the names they are presented for.
    pub certificates: Vec<(Vec<HostName>, Arc<CertifiedKey>)>,
    /// Tells how long the store takes to write, if there is one.
    pub write_delay: Option<WriteDelay>,
    /// Who opens streams to agents. Without one, endpoints of agents are offline.
    pub agents: Option<Arc<dyn Dial>>,
    /// What files of the operator say of addresses.
    pub ip_data: IpDatabases,
    /// What rate limits of the cluster count, where there is a cluster.
    pub counts: Option<SharedCounts>,
    /// Whether the configuration is a copy, and what the database and other nodes know is missing: actions that need it
    /// refuse.
    pub is_from_copy: bool,
    /// The region of this node, for traffic policies.
    pub region: String,
    /// Where traffic policies get their randomness.
    pub entropy: Arc<dyn Entropy>,
    /// Whether a rule of a traffic policy that cannot be decided, because an expression fails,
    /// refuses the request (500) instead of being passed over.
    pub on_expression_error: OnExpressionError,
    /// Whether traffic policies may call public hosts, rather than internal endpoints alone.
    pub allows_public_calls: bool,
    /// Header and query values that events do not tell.
    pub header_rules: HeaderRules,
    /// Whether header fields of clients whose names have an underscore are passed on.
    pub underscore_headers: bool,
    /// Whether plain HTTP for a host that only an https endpoint has is redirected there.
    pub redirect_http: bool,
    /// Whether clients of TLS 1.2 without extended master secret (RFC 7627) are accepted where no client certificate is
    /// requested.
    pub tls12_without_ems: bool,
    /// The server name of TLS clients that send none.
    pub default_server_name: Option<HostName>,
    /// Pages of the edge's own responses.
    pub error_pages: Arc<ErrorPages>,
    /// Threads that serve connections, each its own; none serves them on the runtime that the edge is
    /// started on.
    pub threads: usize,
    /// Times and counts.
    pub limits: Limits,
    /// Counts the traffic of endpoints.
    pub traffic: Arc<Traffic>,
    /// How requests are traced; not at all if `None`. Set at the start only.
    pub tracing: Option<Tracing>,
    /// Where long-lived tasks report their end.
    pub supervisor: Supervisor,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the certificates, whose keys no log may see.
        f.debug_struct("Settings")
            .field("http_addr", &self.http_addr)
            .field("https_addr", &self.https_addr)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            http_addr: None,
            https_addr: None,
            kubernetes_addr: None,
            kubernetes_host: String::new(),
            inherited: Inherited::default(),
            tcp_bind_ip: Ipv4Addr::UNSPECIFIED.into(),
            trusted_proxies: Vec::new(),
            proxy_protocol: ProxyProtocol::default(),
            allow_private_upstreams: true,
            allow_unix_upstreams: AllowedPaths::default(),
            allow_file_upstreams: AllowedPaths::default(),
            allow_networks: Vec::new(),
            proxies: Proxies::default(),
            upstream_roots: Vec::new(),
            certificates: Vec::new(),
            write_delay: None,
            agents: None,
            ip_data: IpDatabases::default(),
            counts: None,
            is_from_copy: false,
            region: String::new(),
            entropy: Arc::new(OsEntropy),
            on_expression_error: OnExpressionError::default(),
            allows_public_calls: false,
            header_rules: HeaderRules::default(),
            underscore_headers: false,
            redirect_http: true,
            tls12_without_ems: false,
            default_server_name: None,
            error_pages: Arc::default(),
            threads: 0,
            limits: Limits::default(),
            traffic: Arc::new(Traffic::new(ENDPOINTS_MAX, 0)),
            tracing: None,
            supervisor: Supervisor::default(),
        }
    }
}

impl Settings {
    pub(crate) fn rules(&self) -> Rules {
        Rules {
            limits: self.limits.clone(),
            header_rules: Arc::new(self.header_rules.clone()),
            underscore_headers: self.underscore_headers,
            redirect_http: self.redirect_http,
            tls12_without_ems: self.tls12_without_ems,
            default_server_name: self
                .default_server_name
                .as_deref()
                .unwrap_or_default()
                .into(),
            on_expression_error: self.on_expression_error,
            allows_public_calls: self.allows_public_calls,
            trusted_proxies: self.trusted_proxies.clone(),
            proxy_protocol: self.proxy_protocol.clone(),
            error_pages: Arc::clone(&self.error_pages),
        }
    }

    pub(crate) fn dialer(&self) -> Result<Dialer, Fault> {
        Dialer::new(
            &self.upstream_roots,
            self.limits.connect,
            AddressGuard::new(self.allow_private_upstreams, &self.allow_networks).with_paths(
                self.allow_unix_upstreams.clone(),
                self.allow_file_upstreams.clone(),
            ),
        )
        .map(|dialer| dialer.through(self.proxies.clone()))
        .map_err(|error| Fault::new("reading the root certificates for upstreams", error))
    }

    pub(crate) fn files(&self) -> Result<Hosts<Arc<ServerCertificate>>, Fault> {
        let mut files = Hosts::default();
        for (names, key) in &self.certificates {
            let presented = ServerCertificate::plain(Arc::clone(key))
                .map_err(|error| Fault::new("using a certificate of a file", error))?;
            for name in names {
                files.insert(name, Arc::clone(&presented));
            }
        }
        Ok(files)
    }
}
