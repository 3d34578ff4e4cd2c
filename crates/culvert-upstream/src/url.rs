//! Upstreams: parsing their URLs and connecting to them, directly or through an agent.

use std::fmt;
use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use culvert_base::net::HostName;
use culvert_base::{Refusal, code};
use culvert_io::proxy::{ProxyAddresses, ProxyVersion};
use culvert_io::{Pipe, RelayEnd, proxy, tcp_options};
use culvert_policy::Scheme;
use rustls::ClientConfig;
use rustls_pki_types::{CertificateDer, ServerName};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::agent::{AgentCall, AgentIo, AgentRefused, Dial, poll_read_copy};
use crate::guard::{AddressGuard, is_private};

/// Most addresses of a name that are tried.
const ADDRESSES_MAX: usize = 16;

/// A service that traffic is forwarded to: scheme, host and port of a URL, or the agents of an endpoint; and its
/// HTTP version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Upstream {
    scheme: UpstreamScheme,
    host: String,
    port: u16,
    protocol: Protocol,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum UpstreamScheme {
    Http,
    Https,
    Tcp,
    /// Behind an agent; the host is the id of the endpoint, and there is no port.
    Agent(Scheme, Option<ProxyVersion>, Clients),
}

/// The clients that share a stream to an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Clients {
    /// Each stream has one client, whose address the agent gets.
    Apart,
    /// Requests of any clients use a stream in sequence: the service reads client addresses from header fields, if at
    /// all.
    Shared,
}

/// The HTTP version of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 from the first byte on.
    Http2,
}

impl Upstream {
    /// Reads `http://host:port`, `https://host:port` or `tcp://host:port` and `http1` (or nothing)
    /// or `http2`. Without a port, http has 80 and https 443.
    ///
    /// # Errors
    ///
    /// Code 18014 with a sentence that describes the error.
    pub fn parse(url: &str, protocol: &str) -> Result<Self, Refusal> {
        let wrong = |why: &str| {
            Refusal::new(
                code::ENDPOINT_FIELD_INVALID,
                format!("the `upstream_url` is invalid: {why}"),
            )
        };
        if url.len() > 2048 {
            return Err(wrong("it is longer than 2048 bytes"));
        }
        let parsed = url::Url::parse(url).map_err(|error| wrong(&error.to_string()))?;
        let scheme = match parsed.scheme() {
            "http" => UpstreamScheme::Http,
            "https" => UpstreamScheme::Https,
            "tcp" => UpstreamScheme::Tcp,
            _ => return Err(wrong("its scheme must be http, https or tcp")),
        };
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(wrong("it must not contain a user or password"));
        }
        if !matches!(parsed.path(), "" | "/")
            || parsed.query().is_some()
            || parsed.fragment().is_some()
        {
            return Err(wrong("it must end after the port"));
        }
        let host = parsed.host_str().unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let host = match (bare.parse::<IpAddr>(), HostName::parse(host)) {
            (Ok(address), _) => address.to_string(),
            (_, Ok(name)) if !name.is_wildcard() => name.to_string(),
            _ => return Err(wrong("its host is neither a host name nor an IP address")),
        };
        let port = match (parsed.port_or_known_default(), scheme) {
            (Some(port), _) if port > 0 => port,
            _ => return Err(wrong("it must have a port between 1 and 65535")),
        };
        let protocol = match protocol {
            "" | "http1" => Protocol::Http1,
            "http2" => Protocol::Http2,
            _ => {
                return Err(Refusal::new(
                    code::ENDPOINT_FIELD_INVALID,
                    "the upstream_protocol must be http1 or http2",
                ));
            }
        };
        Ok(Self {
            scheme,
            host,
            port,
            protocol,
        })
    }

    /// The service behind the agents of the endpoint with this ID. With `proxy`, each connection begins with a PROXY
    /// header. Such connections have one client each whatever `clients` is, and so do connections that do not carry
    /// HTTP/1.
    pub fn agent(
        endpoint: &str,
        scheme: Scheme,
        protocol: Protocol,
        proxy: Option<ProxyVersion>,
        clients: Clients,
    ) -> Self {
        let clients = match (scheme, protocol, proxy) {
            (Scheme::Http | Scheme::Https, _, None) => clients,
            _ => Clients::Apart,
        };
        Self {
            scheme: UpstreamScheme::Agent(scheme, proxy, clients),
            host: endpoint.to_owned(),
            port: 0,
            protocol,
        }
    }

    /// The id of the endpoint, if agents serve it.
    pub fn agents_endpoint(&self) -> Option<&str> {
        matches!(self.scheme, UpstreamScheme::Agent(..)).then_some(&*self.host)
    }

    /// Whether clients never share connections.
    pub fn keeps_clients_apart(&self) -> bool {
        matches!(self.scheme, UpstreamScheme::Agent(_, _, Clients::Apart))
    }

    /// Its HTTP version.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Whether it is reached over TLS.
    pub fn is_tls(&self) -> bool {
        self.scheme == UpstreamScheme::Https
    }

    /// Whether it speaks HTTP and not raw TCP.
    pub fn is_http(&self) -> bool {
        match self.scheme {
            UpstreamScheme::Http | UpstreamScheme::Https => true,
            UpstreamScheme::Tcp => false,
            UpstreamScheme::Agent(scheme, ..) => scheme.is_http(),
        }
    }

    /// Whether its host is a private address or `localhost`. The addresses of a name are checked when it is dialled.
    pub fn is_private(&self) -> bool {
        match self.host.parse() {
            Ok(address) => is_private(address),
            Err(_) => self.host == "localhost" || self.host.ends_with(".localhost"),
        }
    }

    /// Host name or address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            UpstreamScheme::Http => "http",
            UpstreamScheme::Https => "https",
            UpstreamScheme::Tcp => "tcp",
            UpstreamScheme::Agent(..) => return write!(f, "agents of {}", self.host),
        };
        if self.host.contains(':') {
            write!(f, "{scheme}://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{scheme}://{}:{}", self.host, self.port)
        }
    }
}

/// Why connecting failed.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The name has no address.
    #[error("the name has no address")]
    NoAddress,
    /// Its address is private, and private addresses are not allowed.
    #[error("the address is private, and private addresses are not allowed")]
    Private,
    /// It is a listener of this process.
    #[error("it is a listener of this server")]
    OwnListener,
    /// The time limit was reached.
    #[error("connecting timed out")]
    TooSlow,
    /// The network refused the connection.
    #[error("connecting: {0}")]
    Connect(io::Error),
    /// The TLS handshake failed.
    #[error("the TLS handshake failed: {0}")]
    Tls(io::Error),
    /// No agent accepted a stream.
    #[error("{0}")]
    Agent(AgentRefused),
}

impl DialError {
    /// Whether no agent serves the endpoint now.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Agent(AgentRefused::Away))
    }

    /// Whether waiting may help.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Agent(AgentRefused::Busy))
    }
}

/// Connects to upstreams.
#[derive(Clone, Debug)]
pub struct Dialer {
    http1: TlsConnector_,
    http2: TlsConnector_,
    connect: Duration,
    guard: AddressGuard,
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
    /// Trusts the system's roots and `extra` ones. Connections must be complete within `connect`.
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
        })
    }

    /// The same, but for what strangers name: public addresses, those that the operator allows, and
    /// none where we listen ourselves.
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

    /// A new connection, TLS and all, within the connect deadline. Not to agents.
    pub(crate) async fn dial(&self, to: &Upstream) -> Result<UpstreamStream, DialError> {
        self.dial_within(self.connect, to).await
    }

    /// The same, with another deadline.
    pub(crate) async fn dial_within(
        &self,
        limit: Duration,
        to: &Upstream,
    ) -> Result<UpstreamStream, DialError> {
        match tokio::time::timeout(limit, self.connect(to)).await {
            Ok(result) => result,
            Err(_) => Err(DialError::TooSlow),
        }
    }

    async fn connect(&self, to: &Upstream) -> Result<UpstreamStream, DialError> {
        let tcp = self.connect_tcp(to).await?;
        // Small messages in both directions must not wait for each other.
        tcp.set_nodelay(true).map_err(DialError::Connect)?;
        // An answer may be silent for long. What agents carry is watched by the tunnel.
        tcp_options::probe(&tcp);
        let received = Arc::new(AtomicU64::new(0));
        if !to.is_tls() {
            return Ok(UpstreamStream {
                stream: Transport::Plain(tcp),
                received,
            });
        }
        let connector = match to.protocol {
            Protocol::Http1 => &self.http1.0,
            Protocol::Http2 => &self.http2.0,
        };
        let name = ServerName::try_from(to.host.clone())
            .map_err(|error| DialError::Tls(io::Error::other(error)))?;
        let tls = connector.connect(name, tcp).await.map_err(DialError::Tls)?;
        Ok(UpstreamStream {
            stream: Transport::Tls(Box::new(tls)),
            received,
        })
    }

    async fn connect_tcp(&self, to: &Upstream) -> Result<TcpStream, DialError> {
        let mut last = DialError::NoAddress;
        let addresses: Vec<SocketAddr> = match to.host.parse::<IpAddr>() {
            Ok(address) => vec![SocketAddr::new(address, to.port)],
            Err(_) => tokio::net::lookup_host((to.host.as_str(), to.port))
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
}

/// A connection to an upstream. Counts what it receives.
#[derive(Debug)]
pub struct UpstreamStream {
    stream: Transport,
    received: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Transport {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
    Agent(Box<dyn AgentIo>),
    Carried(Box<dyn ByteStream>),
}

/// What a stream of HTTP/2 can do.
trait ByteStream: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> ByteStream for T {}

impl UpstreamStream {
    /// A connection of a test.
    #[cfg(test)]
    pub(crate) fn plain(socket: TcpStream) -> Self {
        Self {
            stream: Transport::Plain(socket),
            received: Arc::default(),
        }
    }

    /// Counts received bytes.
    fn count(&self, bytes: usize) {
        if bytes > 0 {
            let received = self.received.load(Ordering::Relaxed);
            let received = received.saturating_add(bytes as u64);
            self.received.store(received, Ordering::Relaxed);
        }
    }

    /// A stream to the service behind an agent, for the connection from `client` to `server`, whose TLS
    /// was ended here or was not. With `in_turn`, waits until an agent has room.
    pub(crate) async fn to_agent(
        dial: &dyn Dial,
        to: &Upstream,
        (client, server): (SocketAddr, SocketAddr),
        is_tls_ended: bool,
        in_turn: bool,
    ) -> Result<Self, DialError> {
        let UpstreamScheme::Agent(scheme, proxy, clients) = to.scheme else {
            return Err(DialError::NoAddress);
        };
        let call = AgentCall {
            endpoint: &to.host,
            scheme,
            client: (clients == Clients::Apart).then_some(client),
            passes_tls: scheme == Scheme::Tls && !is_tls_ended,
        };
        let opened = match in_turn {
            true => dial.dial_in_turn(call).await,
            false => dial.dial(&call),
        };
        let mut wire = Self {
            stream: Transport::Agent(opened.map_err(DialError::Agent)?),
            received: Arc::default(),
        };
        if let Some(version) = proxy {
            let header = proxy::encode(version, ProxyAddresses { client, server });
            wire.write_all(&header).await.map_err(DialError::Connect)?;
        }
        Ok(wire)
    }

    /// What a stream of an HTTP/2 upstream became.
    pub fn carried(
        stream: impl AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin + 'static,
    ) -> Self {
        Self {
            stream: Transport::Carried(Box::new(stream)),
            received: Arc::default(),
        }
    }

    /// It is kept for later requests: nothing is on its way. `false` if it cannot serve them.
    pub(crate) fn rest(&mut self) -> bool {
        match &mut self.stream {
            Transport::Plain(_) | Transport::Tls(_) => true,
            Transport::Agent(stream) => stream.rest(),
            Transport::Carried(_) => false,
        }
    }

    /// It is wanted again. `false` if it was ended meanwhile.
    pub(crate) fn resume(&mut self) -> bool {
        match &mut self.stream {
            Transport::Agent(stream) => stream.resume(),
            Transport::Plain(_) | Transport::Tls(_) | Transport::Carried(_) => true,
        }
    }

    /// Whether its bytes are those of its socket.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.stream, Transport::Plain(_))
    }

    /// Reads bytes that arrived without a request, even if the runtime does not know of them yet. Returns 0 if the socket has
    /// ended, and [`WouldBlock`](io::ErrorKind::WouldBlock) if there is nothing. After anything else the connection must be
    /// closed. Streams of agents are in memory: their reads say so. Bytes of TLS may be those of a close, and count as one.
    pub(crate) fn read_excess(&self, room: &mut [u8]) -> io::Result<usize> {
        let (socket, is_tls) = match &self.stream {
            Transport::Plain(socket) => (socket, false),
            Transport::Tls(stream) => (stream.get_ref().0, true),
            Transport::Agent(_) | Transport::Carried(_) => {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        };
        let bytes = (&*SockRef::from(socket)).read(room)?;
        Ok(if is_tls { 0 } else { bytes })
    }

    /// It is not wanted any more, and nothing is on its way.
    pub(crate) fn end(&mut self) {
        if let Transport::Agent(stream) = &mut self.stream {
            stream.end();
        }
    }

    /// The counter of received bytes, which moves on while the connection is in use elsewhere.
    pub(crate) fn received(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.received)
    }
}

macro_rules! on_stream {
    ($wire:expr, $io:ident => $call:expr) => {
        match &mut $wire.get_mut().stream {
            Transport::Plain(socket) => {
                let $io = Pin::new(socket);
                $call
            }
            Transport::Tls(stream) => {
                let $io = Pin::new(stream.as_mut());
                $call
            }
            Transport::Agent(stream) => {
                let $io = Pin::new(stream.as_mut());
                $call
            }
            Transport::Carried(stream) => {
                let $io = Pin::new(stream.as_mut());
                $call
            }
        }
    };
}

impl AsyncRead for UpstreamStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let result = on_stream!(self.as_mut(), io => io.poll_read(cx, buf));
        self.count(buf.filled().len() - before);
        result
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        on_stream!(self, io => io.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_stream!(self, io => io.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Transport::Plain(socket) => socket.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
            Transport::Agent(stream) => stream.is_write_vectored(),
            Transport::Carried(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, io => io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, io => io.poll_shutdown(cx))
    }
}

impl RelayEnd for UpstreamStream {
    fn has_pieces(&self) -> bool {
        matches!(self.stream, Transport::Agent(_))
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<io::Result<Bytes>> {
        let Transport::Agent(stream) = &mut self.stream else {
            return poll_read_copy(self, cx, bytes_max);
        };
        let piece = ready!(stream.poll_read_bytes(cx, bytes_max))?;
        self.count(piece.len());
        Poll::Ready(Ok(piece))
    }

    fn is_socket(&self) -> bool {
        matches!(self.stream, Transport::Plain(_))
    }

    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        pipe: &mut Pipe,
        bytes_max: usize,
    ) -> Poll<io::Result<usize>> {
        let Transport::Plain(socket) = &self.stream else {
            return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
        };
        let bytes = ready!(pipe.poll_fill(cx, socket, bytes_max))?;
        self.count(bytes);
        Poll::Ready(Ok(bytes))
    }

    fn poll_empty(&mut self, cx: &mut Context<'_>, pipe: &mut Pipe) -> Poll<io::Result<usize>> {
        let Transport::Plain(socket) = &self.stream else {
            return Poll::Ready(Err(io::ErrorKind::Unsupported.into()));
        };
        pipe.poll_empty(cx, socket)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn upstream_urls_are_parsed() {
        for (url, shown) in [
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("http://LOCALHOST", "http://localhost:80"),
            ("https://a.example/", "https://a.example:443"),
            ("tcp://[::1]:22", "tcp://[::1]:22"),
        ] {
            assert_eq!(Upstream::parse(url, "").unwrap().to_string(), shown);
        }
        for wrong in [
            "",
            "a",
            "ftp://a:1",
            "http://",
            "tcp://a",
            "http://u:p@a",
            "http://a/path",
            "http://a?q",
            "http://a:0",
            "http://a:99999",
            "http://*.a:1",
            "http://a b",
        ] {
            assert_eq!(
                Upstream::parse(wrong, "")
                    .unwrap_err()
                    .code
                    .unwrap()
                    .number(),
                18014,
                "{wrong}"
            );
        }
        assert!(Upstream::parse("http://a", "http3").is_err());
        assert_eq!(
            Upstream::parse("http://a", "http2").unwrap().protocol(),
            Protocol::Http2
        );
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(url in "\\PC{0,60}", protocol in "\\PC{0,6}") {
            if let Ok(upstream) = Upstream::parse(&url, &protocol) {
                prop_assert_eq!(Upstream::parse(&upstream.to_string(), &protocol), Ok(upstream));
            }
        }
    }
}
