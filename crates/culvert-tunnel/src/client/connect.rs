//! Connects to the server: TCP, TLS, and the multiplexer over it.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use culvert_io::forward_proxy::Proxy;
use culvert_mux::{Limits, Side};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::diagnosis::{self, DialError};
use super::interface::{self, Interface};
use crate::congestion_control::CongestionControl;
use crate::driver::{self, Driver, Session};
use crate::socket::Socket;

/// The port of an address without one.
pub(crate) const DEFAULT_PORT: u16 = 8441;
/// Default timeout of the TCP connection and the TLS handshake together.
const CONNECT_TIME: Duration = Duration::from_secs(15);
/// Maximum receive window of a stream: enough for a high rate over a long distance.
const WINDOW_BYTES_MAX: u32 = 1 << 20;

/// The server's address and how to verify its certificate.
#[derive(Clone)]
pub struct Dialing {
    address: String,
    name: ServerName<'static>,
    tls: TlsConnector,
    proxy: Option<Proxy>,
    interface: Option<Interface>,
    congestion_control: CongestionControl,
    timeout: Duration,
    /// Whether a file names the CAs.
    has_own_cas: bool,
}

impl fmt::Debug for Dialing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dialing").field(&self.address).finish()
    }
}

/// Why the address or the CAs of a server are invalid: a sentence without a full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialingError(String);

impl fmt::Display for DialingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DialingError {}

impl Dialing {
    /// A server at `host:port`, or at port 8441 of `host`. `authorities` is PEM; without it, the server's certificate must be trusted by
    /// this machine.
    pub fn new(address: &str, authorities: Option<&[u8]>) -> Result<Self, DialingError> {
        let wrong = || DialingError(format!("the server address `{address}` is not `host:port`"));
        if let Some((scheme, rest)) = address.split_once("://") {
            let rest = rest.split('/').next().unwrap_or_default();
            let host = rest.split(':').next().unwrap_or_default();
            return Err(DialingError(format!(
                "the server address `{address}` is a URL: leave out `{scheme}://`, and give the port for agents, such as `{host}:{DEFAULT_PORT}`"
            )));
        }
        // A bare IPv6 address has colons, and no port.
        let is_bare = address.parse::<std::net::Ipv6Addr>().is_ok();
        let (host, port) = match address.rsplit_once(':') {
            _ if is_bare => (address, None),
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (address, None),
        };
        let port = match port {
            Some(port) => port.parse::<u16>().map_err(|_| wrong())?,
            None => DEFAULT_PORT,
        };
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let name = ServerName::try_from(host.to_owned()).map_err(|_| wrong())?;
        let roots = match authorities {
            Some(pem) => roots_of(pem)?,
            None => system_roots()?,
        };
        Ok(Self {
            address: match host.contains(':') {
                true => format!("[{host}]:{port}"),
                false => format!("{host}:{port}"),
            },
            name,
            tls: TlsConnector::from(Arc::new(client_config(roots))),
            proxy: None,
            interface: None,
            congestion_control: CongestionControl::default(),
            timeout: CONNECT_TIME,
            has_own_cas: authorities.is_some(),
        })
    }

    /// Connects through a proxy.
    #[must_use]
    pub fn through(self, proxy: Option<Proxy>) -> Self {
        Self { proxy, ..self }
    }

    /// Connects from this interface of the machine.
    #[must_use]
    pub fn from_interface(self, interface: Option<Interface>) -> Self {
        Self { interface, ..self }
    }

    /// Has the kernel use this congestion control for the bytes that the agent sends.
    #[must_use]
    pub fn with_congestion_control(self, congestion_control: CongestionControl) -> Self {
        Self {
            congestion_control,
            ..self
        }
    }

    /// Sets the timeout of the TCP connection and the TLS handshake together.
    #[must_use]
    pub fn within(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Connects. No data moves until the driver runs. Also returns the address of this end.
    pub(crate) async fn dial(
        &self,
    ) -> Result<(Session, Driver<TlsStream<Socket>>, IpAddr), DialError> {
        let connecting = async {
            let plain = self.connect().await;
            let (socket, local, peer) =
                plain.map_err(|error| diagnosis::before_tls(&error, &self.address))?;
            let handshake = self.tls.connect(self.name.clone(), socket);
            let socket = handshake.into_fallible().await.map_err(|(error, socket)| {
                diagnosis::in_tls(
                    &error,
                    &self.address,
                    socket.first_bytes(),
                    self.has_own_cas,
                )
            })?;
            Ok((socket, local, peer))
        };
        let (socket, local, peer) = tokio::time::timeout(self.timeout, connecting)
            .await
            .unwrap_or_else(|_| {
                let error = io::ErrorKind::TimedOut.into();
                Err(diagnosis::before_tls(&error, &self.address))
            })?;
        let limits = Limits {
            window_bytes_max: WINDOW_BYTES_MAX,
            ..Limits::for_ours()
        };
        let (session, driver) = driver::connect(socket, Side::Client, limits);
        session.watch_path(local, peer);
        Ok((session, driver, local.ip()))
    }

    /// Connects without TLS. Also returns the addresses of both ends.
    async fn connect(&self) -> io::Result<(Socket, SocketAddr, SocketAddr)> {
        let interface = self.interface.as_ref();
        let socket = match &self.proxy {
            Some(proxy) => {
                let socket = interface::connect(interface, proxy.address()).await?;
                let tunnel = proxy.tunnel(socket, &self.address).await;
                tunnel.map_err(|error| {
                    let proxy = proxy.address();
                    io::Error::other(format!("connecting through {proxy}: {error}"))
                })?
            }
            None => interface::connect(interface, &self.address).await?,
        };
        let (local, peer) = (socket.local_addr()?, socket.peer_addr()?);
        Ok((Socket::new(socket, &self.congestion_control)?, local, peer))
    }
}

/// A TLS 1.2 and 1.3 client configuration that trusts `roots`.
pub(crate) fn client_config(roots: RootCertStore) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for both versions")
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// The CAs that this machine trusts.
pub(crate) fn system_roots() -> Result<RootCertStore, DialingError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    Ok(roots)
}

/// The CAs in a PEM text.
pub(crate) fn roots_of(pem: &[u8]) -> Result<RootCertStore, DialingError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates_of(pem)? {
        // They were accepted by another store.
        roots.add_parsable_certificates([certificate]);
    }
    Ok(roots)
}

/// The certificates of CAs in a PEM text.
pub(crate) fn certificates_of(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, DialingError> {
    let (mut certificates, mut roots) = (Vec::new(), RootCertStore::empty());
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| {
            DialingError(format!("the certificates are not valid PEM: {error}"))
        })?;
        roots
            .add(certificate.clone())
            .map_err(|error| DialingError(format!("a certificate is unusable: {error}")))?;
        certificates.push(certificate);
    }
    if certificates.is_empty() {
        return Err(DialingError("the CA file contains no certificate".into()));
    }
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_host_and_a_port() {
        for good in [
            "localhost:8441",
            "127.0.0.1:1",
            "[::1]:8441",
            "a.example.test:443",
        ] {
            assert_eq!(Dialing::new(good, None).unwrap().address(), good);
        }
        for (short, whole) in [
            ("a.example.test", "a.example.test:8441"),
            ("127.0.0.1", "127.0.0.1:8441"),
            ("::1", "[::1]:8441"),
            ("[::1]", "[::1]:8441"),
        ] {
            assert_eq!(Dialing::new(short, None).unwrap().address(), whole);
        }
        let error = Dialing::new("https://x.test:8420/connect", None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the server address `https://x.test:8420/connect` is a URL: leave out `https://`, and give the port for agents, such as `x.test:8441`"
        );
        for bad in [":8441", "localhost:x", "a b:1", "https://x:1", ""] {
            assert!(Dialing::new(bad, None).is_err(), "{bad}");
        }
        let error = Dialing::new("localhost:1", Some(b"nothing")).unwrap_err();
        assert_eq!(error.to_string(), "the CA file contains no certificate");
    }
}
