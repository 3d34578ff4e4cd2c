//! Opens connections to upstreams that have an address: name lookup, address guard, TCP and TLS.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use culvert_io::forward_proxy::{ProxiedScheme, Proxies, Proxy};
use culvert_io::upstream_tls::UpstreamTls;
use culvert_io::{is_own_address, tcp_options};
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use tokio::net::TcpStream;

use crate::dial_error::DialError;
use crate::guard::AddressGuard;
use crate::stream::UpstreamStream;
use crate::tls::{TlsOptions, Unusable};
use crate::upstream::{Protocol, Upstream};

/// Most addresses of a name that are tried.
const ADDRESSES_MAX: usize = 16;

/// Connects to upstreams.
#[derive(Clone, Debug)]
pub struct Dialer {
    /// The authorities that are trusted unless an upstream has others.
    roots: Arc<RootCertStore>,
    default_tls: Arc<TlsOptions>,
    connect: Duration,
    guard: AddressGuard,
    /// Proxies of single requests; upstreams have none.
    proxies: Proxies,
}

/// The system's roots and further ones.
fn trusted_roots(extra: &[CertificateDer<'static>]) -> Result<RootCertStore, rustls::Error> {
    let mut roots = RootCertStore::empty();
    // Without system roots only the extra ones are trusted; failures show when dialling.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for root in extra {
        roots.add(root.clone())?;
    }
    Ok(roots)
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
        Ok(Self {
            roots: Arc::new(trusted_roots(extra)?),
            default_tls: Arc::new(TlsOptions::new(Ok(UpstreamTls::default()))),
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
        let tls = match to.is_tls() {
            true => {
                let options = to.tls().unwrap_or(&self.default_tls);
                let alpn = match to.protocol() {
                    Protocol::Http1 => "http/1.1",
                    Protocol::Http2 => "h2",
                };
                let connector = options.connector(&self.roots, to.host(), alpn);
                Some(connector.map_err(|unusable| match unusable {
                    Unusable::Withheld(withheld) => DialError::TlsWithheld(withheld),
                    Unusable::Options(error) => DialError::Tls(error),
                })?)
            }
            false => None,
        };
        let tcp = self.connect_tcp(to, proxy).await?;
        // Without this, Nagle's algorithm would delay small messages.
        tcp.set_nodelay(true).map_err(DialError::Connect)?;
        // A response may pause for long: keep-alive probes find a dead upstream. The tunnel checks streams of agents.
        tcp_options::probe(&tcp);
        let Some((connector, name)) = tls else {
            return Ok(UpstreamStream::plain(tcp));
        };
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
