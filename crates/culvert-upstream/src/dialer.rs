//! Opens connections to upstreams that have an address: name lookup, address guard, TCP and TLS.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use culvert_io::forward_proxy::{ProxiedScheme, Proxies, Proxy};
use culvert_io::{is_own_address, tcp_options};
use rustls::ClientConfig;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::dial_error::DialError;
use crate::guard::AddressGuard;
use crate::stream::UpstreamStream;
use crate::upstream::{Protocol, Upstream};

/// Most addresses of a name that are tried.
const ADDRESSES_MAX: usize = 16;

/// Connects to upstreams.
#[derive(Clone, Debug)]
pub struct Dialer {
    http1: TlsConnector_,
    http2: TlsConnector_,
    connect: Duration,
    guard: AddressGuard,
    /// Proxies of single requests; upstreams have none.
    proxies: Proxies,
}

/// The system's roots and further ones.
fn trusted_roots(
    extra: &[CertificateDer<'static>],
) -> Result<rustls::RootCertStore, rustls::Error> {
    let mut roots = rustls::RootCertStore::empty();
    // Without system roots only the extra ones are trusted; failures show when dialling.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for root in extra {
        roots.add(root.clone())?;
    }
    Ok(roots)
}

/// A connector with `Debug`.
#[derive(Clone)]
struct TlsConnector_(TlsConnector);

impl fmt::Debug for TlsConnector_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsConnector")
    }
}

impl Dialer {
    /// Trusts the system's roots and `extra` ones. A connection that takes longer than `connect` fails.
    ///
    /// # Errors
    ///
    /// An extra root is invalid.
    pub fn new(
        extra: &[CertificateDer<'static>],
        connect: Duration,
        guard: AddressGuard,
    ) -> Result<Self, rustls::Error> {
        let roots = trusted_roots(extra)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut http1 = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut http2 = http1.clone();
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        http2.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self {
            http1: TlsConnector_(Arc::new(http1).into()),
            http2: TlsConnector_(Arc::new(http2).into()),
            connect,
            guard,
            proxies: Proxies::default(),
        })
    }

    /// Sends single requests through these proxies. Connections to upstreams are always direct.
    #[must_use]
    pub fn through(self, proxies: Proxies) -> Self {
        Self { proxies, ..self }
    }

    /// A dialer with the same settings for URLs that users supply: it connects to public addresses and those that the
    /// operator allows, but never to a listener of this process.
    pub(crate) fn to_public(&self, own: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self {
            guard: self.guard.to_public(own),
            ..self.clone()
        }
    }

    /// The addresses that it connects to.
    pub(crate) fn guard(&self) -> &AddressGuard {
        &self.guard
    }

    /// Opens a connection, including the TLS handshake, within `limit`. Not for agents.
    pub(crate) async fn dial_within(
        &self,
        limit: Duration,
        to: &Upstream,
    ) -> Result<UpstreamStream, DialError> {
        match tokio::time::timeout(limit, self.connect(to, None)).await {
            Ok(result) => result,
            Err(_) => Err(DialError::TooSlow),
        }
    }

    /// Like [`Self::dial_within`], within the connect deadline and through the proxy for the host if there is one.
    pub(crate) async fn dial_by_proxy(&self, to: &Upstream) -> Result<UpstreamStream, DialError> {
        let scheme = match to.is_tls() {
            true => ProxiedScheme::Https,
            false => ProxiedScheme::Http,
        };
        let proxy = self.proxies.of(scheme, to.host(), to.port());
        match tokio::time::timeout(self.connect, self.connect(to, proxy)).await {
            Ok(result) => result,
            Err(_) => Err(DialError::TooSlow),
        }
    }

    async fn connect(
        &self,
        to: &Upstream,
        proxy: Option<&Proxy>,
    ) -> Result<UpstreamStream, DialError> {
        let tcp = self.connect_tcp(to, proxy).await?;
        // Without this, Nagle's algorithm would delay small messages.
        tcp.set_nodelay(true).map_err(DialError::Connect)?;
        // A response may pause for long: keep-alive probes find a dead upstream. The tunnel checks streams of agents.
        tcp_options::probe(&tcp);
        if !to.is_tls() {
            return Ok(UpstreamStream::plain(tcp));
        }
        let connector = match to.protocol() {
            Protocol::Http1 => &self.http1.0,
            Protocol::Http2 => &self.http2.0,
        };
        let name = ServerName::try_from(to.host().to_owned())
            .map_err(|error| DialError::Tls(io::Error::other(error)))?;
        let tls = connector.connect(name, tcp).await.map_err(DialError::Tls)?;
        Ok(UpstreamStream::tls(tls))
    }

    async fn connect_tcp(
        &self,
        to: &Upstream,
        proxy: Option<&Proxy>,
    ) -> Result<TcpStream, DialError> {
        let mut last = DialError::NoAddress;
        let addresses: Vec<SocketAddr> = match to.host().parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, to.port())],
            Err(_) => tokio::net::lookup_host((to.host(), to.port()))
                .await
                .map_err(DialError::Connect)?
                .take(ADDRESSES_MAX)
                .collect(),
        };
        if !self.guard.admits(&addresses) {
            return Err(DialError::Private);
        }
        if addresses.iter().any(|place| self.guard.is_own(*place)) {
            return Err(DialError::OwnListener);
        }
        // For the proxy, these would be addresses of its machine.
        let is_here = |place: &SocketAddr| place.ip().is_loopback() || place.ip().is_unspecified();
        if let Some(proxy) = proxy.filter(|_| !addresses.iter().any(is_here)) {
            return self.connect_by(proxy, &addresses).await;
        }
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(tcp) => {
                    if self.guard.minds_own() {
                        let local = tcp.local_addr().map_err(DialError::Connect)?;
                        if self.guard.is_own_by_now(local, address) {
                            return Err(DialError::OwnListener);
                        }
                    }
                    return Ok(tcp);
                }
                Err(error) => last = DialError::Connect(error),
            }
        }
        Err(last)
    }

    /// Connects to one of the admitted addresses through a proxy. The operator named the proxy, so the guard does not
    /// apply to its own address.
    async fn connect_by(
        &self,
        proxy: &Proxy,
        addresses: &[SocketAddr],
    ) -> Result<TcpStream, DialError> {
        let mut last = DialError::NoAddress;
        for address in addresses {
            // The connection's own ends are those of the proxy, so this is decided before.
            if self.guard.is_own_by_now(*address, *address) && is_own_address(address.ip()) {
                return Err(DialError::OwnListener);
            }
            match proxy.connect(*address).await {
                Ok(tcp) => return Ok(tcp),
                // The answer of a proxy that rejects the request would be the same for the next address.
                Err(error) if !error.is_of_address() => return Err(DialError::Proxy(error)),
                Err(error) => last = DialError::Proxy(error),
            }
        }
        Err(last)
    }
}
