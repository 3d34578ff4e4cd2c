//! Opens connections to upstreams that have an address: name lookup, address guard, TCP and TLS. Or a path: Unix sockets and folders.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use culvert_base::Share;
use culvert_io::forward_proxy::{ProxiedScheme, Proxies, Proxy};
use culvert_io::unix::{self, UnixError};
use culvert_io::upstream_tls::UpstreamTls;
use culvert_io::{is_own_address, tcp_options};
use culvert_site::{Site, SiteError};
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::dial_error::DialError;
use crate::guard::AddressGuard;
use crate::names::{self, LookupFor, Names};
use crate::stream::UpstreamStream;
use crate::tls::{TlsOptions, Unusable};
use crate::upstream::{Protocol, Upstream};

/// After how long the next address of a name is tried beside those that have not responded (RFC 8305, section 8).
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);

/// Connects to upstreams.
#[derive(Clone, Debug)]
pub struct Dialer {
    /// The authorities that are trusted unless an upstream has others.
    roots: Arc<RootCertStore>,
    default_tls: Arc<TlsOptions>,
    connect: Duration,
    guard: AddressGuard,
    names: Names,
    /// Counts connections, so that each begins with another address of a name.
    turn: Arc<AtomicUsize>,
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
            names: Names::default(),
            turn: Arc::default(),
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

    /// The same with the lookups that run for another dialer.
    #[must_use]
    pub fn with_lookups_of(self, other: &Self) -> Self {
        Self {
            names: other.names.clone(),
            turn: Arc::clone(&other.turn),
            ..self
        }
    }

    /// Looks up names.
    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// Opens a connection, including the TLS handshake, within `limit`. It begins with `header`. Not for agents.
    pub(crate) async fn dial_within(
        &self,
        limit: Duration,
        to: &Upstream,
        lookup: (LookupFor, Share),
        header: Option<Vec<u8>>,
    ) -> Result<UpstreamStream, DialError> {
        let begins = Begins {
            header: header.unwrap_or_default(),
            proxy: None,
        };
        self.connect_within(limit, to, lookup, begins).await
    }

    async fn connect_within(
        &self,
        limit: Duration,
        to: &Upstream,
        lookup: (LookupFor, Share),
        begins: Begins<'_>,
    ) -> Result<UpstreamStream, DialError> {
        let is_queued = AtomicBool::new(false);
        let connecting = self.connect(to, (lookup, &is_queued), begins);
        match tokio::time::timeout(limit, connecting).await {
            Ok(result) => result,
            // It says nothing about the upstream.
            Err(_) if is_queued.load(Ordering::Relaxed) => Err(DialError::TooManyLookups),
            Err(_) => Err(DialError::TooSlow),
        }
    }

    /// Like [`Self::dial_within`], within the connect deadline and through the proxy for the host if there is one.
    pub(crate) async fn dial_by_proxy(
        &self,
        to: &Upstream,
        share: Share,
    ) -> Result<UpstreamStream, DialError> {
        let scheme = match to.is_tls() {
            true => ProxiedScheme::Https,
            false => ProxiedScheme::Http,
        };
        let proxy = self.proxies.of(scheme, to.host(), to.port());
        let lookup = (LookupFor::Calls, share);
        let header = Vec::new();
        let begins = Begins { header, proxy };
        self.connect_within(self.connect, to, lookup, begins).await
    }

    async fn connect(
        &self,
        to: &Upstream,
        lookup: Lookup<'_>,
        begins: Begins<'_>,
    ) -> Result<UpstreamStream, DialError> {
        if let Some(path) = to.socket() {
            let connected = unix::connect_allowed(path, self.guard.sockets()).await;
            return match connected {
                Ok(mut socket) => {
                    let written = socket.write_all(&begins.header).await;
                    written.map_err(DialError::Connect)?;
                    Ok(UpstreamStream::unix(socket))
                }
                Err(UnixError::NotAllowed) => Err(DialError::SocketNotAllowed),
                Err(UnixError::Connect(error)) => Err(DialError::Connect(error)),
            };
        }
        if let Some(path) = to.folder() {
            let site = Site::new(path).only_in(self.guard.folders().clone());
            return match site.connect().await {
                Ok(stream) => Ok(UpstreamStream::carried(stream)),
                Err(SiteError::NotAllowed) => Err(DialError::FolderNotAllowed),
                Err(SiteError::Open(error)) => Err(DialError::Connect(error)),
            };
        }
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
        let mut tcp = self.connect_tcp(to, lookup, begins.proxy).await?;
        // Without this, Nagle's algorithm would delay small messages.
        tcp.set_nodelay(true).map_err(DialError::Connect)?;
        // A response may pause for long: keep-alive probes find a dead upstream. The tunnel checks streams of agents.
        tcp_options::probe(&tcp);
        let written = tcp.write_all(&begins.header).await;
        written.map_err(DialError::Connect)?;
        let Some((connector, name)) = tls else {
            return Ok(UpstreamStream::plain(tcp));
        };
        let tls = connector.connect(name, tcp).await.map_err(DialError::Tls)?;
        Ok(UpstreamStream::tls(tls))
    }

    async fn connect_tcp(
        &self,
        to: &Upstream,
        lookup: Lookup<'_>,
        proxy: Option<&Proxy>,
    ) -> Result<TcpStream, DialError> {
        let (lookup, is_queued) = lookup;
        let addresses = self.names.addresses(to.host(), lookup, is_queued).await?;
        // Scattered, so that names that are used in turn do not have the same address each time.
        let turn = self.turn.fetch_add(0x9E37_79B9, Ordering::Relaxed) >> 16;
        let addresses = names::order(&addresses, to.port(), turn);
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
        let (tcp, address) = connect_to_first(&addresses).await?;
        if self.guard.minds_own() {
            let local = tcp.local_addr().map_err(DialError::Connect)?;
            if self.guard.is_own_by_now(local, address) {
                return Err(DialError::OwnListener);
            }
        }
        Ok(tcp)
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

/// What a connection begins with.
struct Begins<'x> {
    /// Sent first, before TLS.
    header: Vec<u8>,
    /// On the way to the host.
    proxy: Option<&'x Proxy>,
}

/// What a lookup is for, and whether it waits for its place.
type Lookup<'x> = ((LookupFor, Share), &'x AtomicBool);

fn failed(address: SocketAddr, error: io::Error) -> DialError {
    // EADDRNOTAVAIL: no free port, or, for IPv6, a machine without IPv6. The address cannot be connected to then.
    let has_no_ipv6 = address.is_ipv6() && error.raw_os_error() == Some(99);
    DialError::Connect(match has_no_ipv6 {
        true => io::ErrorKind::AddrNotAvailable.into(),
        false => error,
    })
}

/// Connects to the first of these addresses that accepts. Each is tried as soon as the one before it has failed, or has not
/// responded for a while: a dead address does not take all the time that there is.
async fn connect_to_first(addresses: &[SocketAddr]) -> Result<(TcpStream, SocketAddr), DialError> {
    let mut waiting = addresses.iter().copied();
    let first = waiting.next().ok_or(DialError::NoAddress)?;
    // Most have one address, which needs no task.
    if addresses.len() == 1 {
        let tcp = TcpStream::connect(first).await;
        return Ok((tcp.map_err(|error| failed(first, error))?, first));
    }
    let attempt = |address| async move { (TcpStream::connect(address).await, address) };
    let mut attempts = JoinSet::new();
    attempts.spawn(attempt(first));
    let mut failure = None;
    loop {
        let ended = tokio::select! {
            biased;
            ended = attempts.join_next() => ended,
            () = tokio::time::sleep(NEXT_ADDRESS_AFTER), if waiting.len() > 0 => {
                if let Some(next) = waiting.next() {
                    attempts.spawn(attempt(next));
                }
                continue;
            }
        };
        match ended {
            Some(Ok((Ok(tcp), address))) => return Ok((tcp, address)),
            // What this process lacks for one address explains nothing about the others.
            Some(Ok((Err(error), address))) => {
                let error = failed(address, error);
                if !error.is_local() || failure.is_none() {
                    failure = Some(error);
                }
            }
            Some(Err(_)) => {}
            None => return Err(failure.unwrap_or(DialError::NoAddress)),
        }
        if let Some(next) = waiting.next() {
            attempts.spawn(attempt(next));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A listener whose queue is full: it does not respond to another connection.
    async fn silent() -> (TcpListener, Vec<TcpStream>) {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queued = Vec::new();
        let within = Duration::from_millis(200);
        let mut missed = 0;
        // One late response may be that of a busy machine.
        while missed < 3 {
            match tokio::time::timeout(within, TcpStream::connect(address)).await {
                Ok(tcp) => queued.push(tcp.unwrap()),
                Err(_) => missed += 1,
            }
        }
        (listener, queued)
    }

    #[tokio::test]
    async fn a_dead_address_does_not_take_the_time_of_the_next() {
        let (dead, _queued) = silent().await;
        // Bound, so that no other process listens there.
        let bound = tokio::net::TcpSocket::new_v4().unwrap();
        bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let closed = bound.local_addr().unwrap();
        let alive = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = alive.local_addr().unwrap();
        let dead = dead.local_addr().unwrap();
        let connected = connect_to_first(&[dead, closed, address]).await.unwrap();
        assert_eq!(connected.1, address);
        assert_eq!(connected.0.peer_addr().unwrap(), address);
        let refused = connect_to_first(&[closed, closed]).await.unwrap_err();
        assert!(matches!(refused, DialError::Connect(_)), "{refused}");
        // As on a machine without IPv6: the other address decides.
        let lacking = io::Error::from_raw_os_error(99);
        assert!(!failed("[::1]:1".parse().unwrap(), lacking).is_local());
        let lacking = io::Error::from_raw_os_error(99);
        assert!(failed(closed, lacking).is_local());
        let none = connect_to_first(&[]).await.unwrap_err();
        assert!(matches!(none, DialError::NoAddress));
    }
}
