//! Where an agent forwards to, and how it gets there.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use culvert_base::net::{SocketPath, folder_of_url, without_secrets};
use culvert_io::unix;
use culvert_io::upstream_tls::UpstreamTls;
use culvert_site::{Site, SiteError, SiteStream};
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::connect;
use super::endpoint::Protocol;

/// For a service to accept.
pub(crate) const CONNECT_TIME: Duration = Duration::from_secs(10);

/// A service of this machine or network.
#[derive(Clone)]
pub struct Upstream {
    text: String,
    place: Place,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    is_unverified: bool,
}

#[derive(Clone)]
enum Place {
    Host {
        host: String,
        port: u16,
        /// Where the name that always means this machine last answered.
        loopback_is_v6: Arc<AtomicBool>,
    },
    Unix(SocketPath),
    Files(Site),
}

/// A connection to a service, before TLS.
#[derive(Debug)]
pub(crate) enum ServiceSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Files(SiteStream),
}

culvert_io::delegate_io!(AsyncRead, AsyncWrite for ServiceSocket {
    Self::Tcp(io) => io,
    Self::Unix(io) => io,
    Self::Files(io) => io,
});

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Upstream").field(&self.text).finish()
    }
}

const NEEDS_TLS: &str = "pins, a server name and a client certificate need an https or tls service";

/// What a scheme means.
struct Scheme {
    name: &'static str,
    port: Option<u16>,
    tls: bool,
    /// Whether the service is one for requests rather than bytes.
    http: bool,
}

const SCHEMES: [Scheme; 4] = [
    Scheme {
        name: "http",
        port: Some(80),
        tls: false,
        http: true,
    },
    Scheme {
        name: "https",
        port: Some(443),
        tls: true,
        http: true,
    },
    Scheme {
        name: "tcp",
        port: None,
        tls: false,
        http: false,
    },
    Scheme {
        name: "tls",
        port: Some(443),
        tls: true,
        http: false,
    },
];

impl Upstream {
    /// Reads a port, `host:port`, a URL of scheme `http`, `https`, `tcp` or `tls`, or that of a Unix socket
    /// ([`SocketPath::of_url`]) or folder ([`folder_of_url`]), as the service of an endpoint of `protocol`. `http2` says that the service is spoken to in HTTP/2, and `options` how TLS to
    /// it is set up, if it has TLS.
    ///
    /// # Errors
    ///
    /// A sentence without a full stop.
    pub fn parse(
        text: &str,
        protocol: Protocol,
        http2: bool,
        options: &UpstreamTls,
    ) -> Result<Self, String> {
        let refuse = |why: &str| {
            let shown = without_secrets(text);
            Err(format!("invalid upstream `{shown}`: {why}"))
        };
        if let Some(folder) = folder_of_url(text) {
            return match folder {
                Err(why) => refuse(&why.to_string()),
                Ok(_) if !protocol.is_http() => refuse("files require an http endpoint"),
                Ok(_) if http2 => refuse("files are served over HTTP/1.1"),
                Ok(_) if options.needs_tls() => refuse(NEEDS_TLS),
                Ok(path) => Ok(Self {
                    text: format!("file://{}", path.display()),
                    place: Place::Files(Site::new(path)),
                    tls: None,
                    is_unverified: false,
                }),
            };
        }
        if let Some(socket) = SocketPath::of_url(text) {
            return match socket {
                Err(why) => refuse(&why.to_string()),
                Ok(_) if text.starts_with("http") && !protocol.is_http() => {
                    refuse("an HTTP service requires an http endpoint")
                }
                Ok(_) if options.needs_tls() => refuse(NEEDS_TLS),
                Ok(path) => Ok(Self {
                    text: path.to_string(),
                    place: Place::Unix(path),
                    tls: None,
                    is_unverified: false,
                }),
            };
        }
        let default = if protocol.is_http() { "http" } else { "tcp" };
        let (scheme, rest) = text.split_once("://").unwrap_or((default, text));
        let Some(scheme) = SCHEMES.iter().find(|known| known.name == scheme) else {
            return refuse("the scheme must be http, https, tcp, tls, unix or file");
        };
        if scheme.http != protocol.is_http() {
            return refuse(if scheme.http {
                "an HTTP service requires an http endpoint"
            } else {
                "an http endpoint requires an HTTP service"
            });
        }
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?', '#', '@']) {
            return refuse("only a scheme, a host and a port are allowed");
        }
        let (host, port) = match authority.rsplit_once(':') {
            _ if authority.ends_with(']') => (authority, None),
            Some((host, port)) => (host, Some(port)),
            // `https://` alone stands for this machine.
            None if authority.is_empty() && text.contains("://") => ("localhost", None),
            None if authority.bytes().all(|b| b.is_ascii_digit()) => ("localhost", Some(authority)),
            None => (authority, None),
        };
        let host = match host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
        {
            Some(host) => host,
            None if host.contains(':') => return refuse("an IPv6 address must be in brackets"),
            None if host.is_empty() => "localhost",
            None => host,
        };
        let port = match (port, scheme.port) {
            (Some(port), _) => match port.parse() {
                Ok(0) | Err(_) => return refuse("the port must be 1 to 65535"),
                Ok(port) => port,
            },
            (None, Some(port)) => port,
            (None, None) => return refuse("the port is missing"),
        };
        if !scheme.tls && options.needs_tls() {
            return refuse(NEEDS_TLS);
        }
        let tls = if scheme.tls {
            let Some(name) = options.name(host) else {
                return refuse("the host is not a valid name for a certificate");
            };
            let roots = connect::system_roots().map_err(|error| error.to_string())?;
            let config = options.config(&Arc::new(roots));
            let mut config =
                config.map_err(|error| format!("the TLS options are invalid: {error}"))?;
            if scheme.http {
                config.alpn_protocols = vec![if http2 {
                    b"h2".into()
                } else {
                    b"http/1.1".into()
                }];
            }
            Some((TlsConnector::from(Arc::new(config)), name))
        } else {
            None
        };
        let shown = if host.contains(':') {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        Ok(Self {
            text: format!("{}://{shown}:{port}", scheme.name),
            place: Place::Host {
                host: host.to_owned(),
                port,
                loopback_is_v6: Arc::default(),
            },
            is_unverified: scheme.tls && options.is_unverified(),
            tls,
        })
    }

    /// Whether it has TLS and its certificate is not verified.
    pub fn is_unverified(&self) -> bool {
        self.is_unverified
    }

    /// The whole URL, with its port, or the path of a socket or folder.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The host, with the port if it is not the default one of the scheme, as in a `Host` field. A Unix socket or folder has no name, and
    /// counts as `localhost`, as for nginx.
    pub(crate) fn authority(&self) -> String {
        let Place::Host { port, .. } = &self.place else {
            return "localhost".to_owned();
        };
        let (scheme, authority) = self.text.split_once("://").unwrap_or(("", &self.text));
        let default = SCHEMES.iter().find(|known| known.name == scheme);
        let default = default.and_then(|known| known.port);
        match authority.rsplit_once(':') {
            Some((host, _)) if default == Some(*port) => host.to_owned(),
            _ => authority.to_owned(),
        }
    }

    /// Connects, without TLS.
    pub(crate) async fn connect(&self) -> io::Result<ServiceSocket> {
        let connected = tokio::time::timeout(CONNECT_TIME, self.place.connect()).await;
        connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// What to speak TLS with, and as whom, where the service wants it.
    pub(crate) fn tls(&self) -> Option<&(TlsConnector, ServerName<'static>)> {
        self.tls.as_ref()
    }
}

impl Place {
    async fn connect(&self) -> io::Result<ServiceSocket> {
        match self {
            Self::Host {
                host,
                port,
                loopback_is_v6,
            } => {
                let socket = match host.as_str() {
                    "localhost" => Self::connect_local(*port, loopback_is_v6).await?,
                    host => TcpStream::connect((host, *port)).await?,
                };
                socket.set_nodelay(true)?;
                Ok(ServiceSocket::Tcp(socket))
            }
            Self::Unix(path) => {
                let socket = unix::connect(path.as_str().as_ref()).await?;
                Ok(ServiceSocket::Unix(socket))
            }
            Self::Files(site) => match site.connect().await {
                Ok(stream) => Ok(ServiceSocket::Files(stream)),
                Err(SiteError::Open(error)) => Err(error),
                Err(error @ SiteError::NotAllowed) => Err(io::Error::other(error)),
            },
        }
    }

    async fn connect_local(port: u16, loopback_is_v6: &AtomicBool) -> io::Result<TcpStream> {
        // The usual case is spared the resolver, and the address that does not answer.
        let addresses = [
            IpAddr::from(Ipv4Addr::LOCALHOST),
            IpAddr::from(Ipv6Addr::LOCALHOST),
        ];
        let first = usize::from(loopback_is_v6.load(Ordering::Relaxed));
        match TcpStream::connect(SocketAddr::new(addresses[first], port)).await {
            Ok(socket) => Ok(socket),
            Err(refused) => {
                let other = SocketAddr::new(addresses[1 - first], port);
                // The other family may be missing altogether, which explains nothing.
                let socket = TcpStream::connect(other).await.map_err(|_| refused)?;
                loopback_is_v6.store(first == 0, Ordering::Relaxed);
                Ok(socket)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, protocol: Protocol, expected: &str) {
        let parsed = Upstream::parse(text, protocol, false, &UpstreamTls::default());
        let said = parsed.map(|upstream| upstream.text);
        assert_eq!(said.as_deref().unwrap_or_else(|error| &error[..]), expected);
    }

    #[test]
    fn a_port_is_enough_and_a_url_says_more() {
        check("8080", Protocol::Https, "http://localhost:8080");
        check("https://", Protocol::Https, "https://localhost:443");
        check(":8080", Protocol::Http, "http://localhost:8080");
        check("10.0.0.1:80", Protocol::Https, "http://10.0.0.1:80");
        check("http://web", Protocol::Https, "http://web:80");
        check("http://web:81/", Protocol::Https, "http://web:81");
        check("22", Protocol::Tcp, "tcp://localhost:22");
        check("[::1]:22", Protocol::Tcp, "tcp://[::1]:22");
        check("tcp://db:5432", Protocol::Tls, "tcp://db:5432");
        check("file:///srv/site/", Protocol::Http, "file:///srv/site");
        check("unix:/run/a.sock", Protocol::Http, "unix:/run/a.sock");
        check("unix:///run/a.sock", Protocol::Tcp, "unix:/run/a.sock");
        check("unix//run/a.sock", Protocol::Tls, "unix:/run/a.sock");
        check(
            "http://unix:/run/a.sock:",
            Protocol::Https,
            "unix:/run/a.sock",
        );
    }

    #[test]
    fn a_refusal_does_not_repeat_a_password() {
        for text in [
            "http://me:hush@a.example",
            "http://me:hush@a.example/x?token=hush",
            "ftp://me:hush@a.example:21",
            "me:hush@a.example:80",
            "http://a.example/?token=hush",
            "tcp://me:hush@a.example:1",
        ] {
            let parsed = Upstream::parse(text, Protocol::Http, false, &UpstreamTls::default());
            let refused = parsed.unwrap_err();
            assert!(!refused.contains("hush"), "{refused}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused_with_the_reason() {
        for (text, protocol, why) in [
            ("0", Protocol::Tcp, "the port must be 1 to 65535"),
            ("65536", Protocol::Tcp, "the port must be 1 to 65535"),
            ("web:x", Protocol::Https, "the port must be 1 to 65535"),
            ("db", Protocol::Tcp, "the port is missing"),
            ("::1", Protocol::Tcp, "an IPv6 address must be in brackets"),
            (
                "http://web/path",
                Protocol::Https,
                "only a scheme, a host and a port are allowed",
            ),
            (
                "http://u:p@web",
                Protocol::Https,
                "only a scheme, a host and a port are allowed",
            ),
            (
                "ftp://web",
                Protocol::Https,
                "the scheme must be http, https, tcp, tls, unix or file",
            ),
            (
                "tcp://web:1",
                Protocol::Https,
                "an http endpoint requires an HTTP service",
            ),
            (
                "http://web",
                Protocol::Tcp,
                "an HTTP service requires an http endpoint",
            ),
            (
                "http://unix:/run/a.sock",
                Protocol::Tcp,
                "an HTTP service requires an http endpoint",
            ),
            (
                "file:///srv",
                Protocol::Tcp,
                "files require an http endpoint",
            ),
            (
                "file://site",
                Protocol::Http,
                "the path of a folder must be absolute, as in `file:///srv/site`",
            ),
            (
                "unix:a.sock",
                Protocol::Http,
                "the path of a Unix socket must be absolute, as in `unix:/run/app.sock`",
            ),
        ] {
            let shown = text.replace("u:p@", "…@");
            check(
                text,
                protocol,
                &format!("invalid upstream `{shown}`: {why}"),
            );
        }
    }
}
