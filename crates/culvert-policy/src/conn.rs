//! A client connection: its facts, which never change, and its counters.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use culvert_base::Timestamp;
use culvert_base::net::plain_address;
use culvert_tls::handshake::HandshakeInfo;
use culvert_tls::server_certificate::ServerCertificate;
use culvert_tls::tls_policy::TlsPolicy;
use http::HeaderValue;
use tokio::time::Instant;

/// Facts of a connection. Each is set once: at accept, with the ClientHello, or with the handshake.
#[derive(Debug)]
pub struct ConnInfo {
    /// The client's address.
    pub client: SocketAddr,
    /// The address that the client connected to.
    pub server: SocketAddr,
    /// Whether the edge trusts the forwarding headers of this peer.
    pub is_trusted: bool,
    started_at: Timestamp,
    started: Instant,
    /// The SNI of the ClientHello (RFC 6066 section 3), in lower case. Set before any rule of a policy runs; empty without
    /// TLS or SNI.
    sni: OnceLock<String>,
    /// Empty without TLS.
    pub tls: OnceLock<TlsInfo>,
    client_value: OnceLock<HeaderValue>,
    addresses: OnceLock<(String, String)>,
}

/// The result of the TLS handshake.
#[derive(Debug)]
pub struct TlsInfo {
    /// The server certificate: one for each certificate and TLS policy.
    pub certificate: Arc<ServerCertificate>,
    /// The TLS policy of a traffic policy that the handshake ran under.
    pub tls_policy: Option<Arc<TlsPolicy>>,
    /// Known when the handshake is complete.
    pub handshake: OnceLock<HandshakeInfo>,
}

impl ConnInfo {
    /// A connection that is accepted now, at `started_at` by the server's clock.
    pub fn new(
        client: SocketAddr,
        server: SocketAddr,
        is_trusted: bool,
        started_at: Timestamp,
    ) -> Self {
        Self {
            client: SocketAddr::new(plain_address(client.ip()), client.port()),
            server: SocketAddr::new(plain_address(server.ip()), server.port()),
            is_trusted,
            started_at,
            started: Instant::now(),
            sni: OnceLock::new(),
            tls: OnceLock::new(),
            client_value: OnceLock::new(),
            addresses: OnceLock::new(),
        }
    }

    /// When the connection was accepted.
    pub fn started_at(&self) -> Timestamp {
        self.started_at
    }

    /// [`Self::started_at`] by the monotonic clock.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// The current time, never before the accept.
    pub fn now(&self) -> Timestamp {
        self.at(Instant::now())
    }

    /// The time of this instant by the clock of the accept, and never before the accept.
    pub fn at(&self, instant: Instant) -> Timestamp {
        self.started_at
            .plus(instant.saturating_duration_since(self.started))
    }

    /// Sets the SNI. The first call counts.
    pub fn set_sni(&self, name: String) -> &str {
        self.sni.get_or_init(|| name)
    }

    /// The SNI; empty without TLS or SNI.
    pub fn sni(&self) -> &str {
        self.sni.get().map_or("", String::as_str)
    }

    /// The client's address as a header value.
    pub fn client_value(&self) -> HeaderValue {
        self.client_value
            .get_or_init(|| {
                HeaderValue::try_from(self.client.ip().to_string())
                    .expect("an address is made of header characters")
            })
            .clone()
    }

    /// The client's and the server's address as text for events.
    pub fn addresses(&self) -> (&str, &str) {
        let (client, server) = self
            .addresses
            .get_or_init(|| (self.client.ip().to_string(), self.server.ip().to_string()));
        (client, server)
    }

    /// The block of addresses that limits count as one client: the address itself, or the /64 of IPv6.
    pub fn source(&self) -> IpAddr {
        source(self.client.ip())
    }
}

/// Counters of a connection.
#[derive(Debug, Default)]
pub struct ConnCounters {
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    /// Bytes handed to the socket or to TLS.
    handed_out: AtomicU64,
    /// Open exchanges.
    pub open: AtomicUsize,
    /// Exchanges so far.
    pub begun: AtomicU64,
    /// Header bytes of the open HTTP/2 requests.
    pub header_bytes: AtomicUsize,
    /// Bytes of buffered bodies.
    pub held_bytes: AtomicUsize,
    /// HTTP/2 streams that were reset because the client did not read them.
    pub slow_streams: AtomicUsize,
}

impl ConnCounters {
    /// Sets how many bytes were read from the client's socket.
    pub fn set_bytes_in(&self, bytes: u64) {
        self.bytes_in.store(bytes, Ordering::Relaxed);
    }

    /// Sets how many bytes were written to it.
    pub fn set_bytes_out(&self, bytes: u64) {
        self.bytes_out.store(bytes, Ordering::Relaxed);
    }

    /// Sets how many bytes were handed to the socket or to TLS.
    pub fn set_handed_out(&self, bytes: u64) {
        self.handed_out.store(bytes, Ordering::Relaxed);
    }

    /// Bytes handed to the socket or to TLS.
    pub fn handed_out(&self) -> u64 {
        self.handed_out.load(Ordering::Relaxed)
    }

    /// Bytes read from and written to the client's socket.
    pub fn bytes(&self) -> (u64, u64) {
        (
            self.bytes_in.load(Ordering::Relaxed),
            self.bytes_out.load(Ordering::Relaxed),
        )
    }
}

/// The block of addresses that limits count as one client: the address itself, or the /64 of IPv6.
pub fn source(client: IpAddr) -> IpAddr {
    match client {
        IpAddr::V4(_) => client,
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            Ipv6Addr::from(network).into()
        }
    }
}

/// The same block as a number, equal on every node.
pub fn source_number(client: IpAddr) -> u64 {
    match client {
        // No network of IPv6 begins with 32 zeros.
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => (u128::from(address) >> 64) as u64,
    }
}
