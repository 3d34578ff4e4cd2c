//! Forward proxies, HTTP and SOCKS5, from the variables that other programs use.
//!
//! The connectors of HTTP libraries read these variables too, but only together with their pools and resolvers. Here a
//! connection to a proxy is turned into one to a target, whatever is spoken on it after that.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_base::Secret;
use culvert_base::metadata_address::is_metadata;
use ipnet::IpNet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_socks::tcp::Socks5Stream;

/// Maximum size of a proxy's response.
const RESPONSE_BYTES_MAX: usize = 16 << 10;
/// Most characters of its status line that are repeated.
const REASON_CHARS_MAX: usize = 100;

/// A proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// `host:port`.
    address: String,
    kind: Kind,
}

/// The protocol of a proxy.
#[derive(Clone, PartialEq, Eq)]
enum Kind {
    /// Connects with CONNECT.
    Http {
        /// The value of `proxy-authorization`.
        authorization: Option<Secret>,
    },
    /// Connects with SOCKS5. It resolves the names that it is given; servers give it addresses.
    Socks5 {
        /// A user and a password.
        login: Option<(String, Secret)>,
    },
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Proxy").field(&self.address).finish()
    }
}

impl Proxy {
    /// Parses a URL such as `http://user:password@proxy:3128` or `socks5://proxy`. The error is a sentence without a
    /// full stop, and does not contain the password.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let (is_socks, default_port) = match &scheme.to_ascii_lowercase()[..] {
            "http" => (false, 80),
            "socks5" | "socks5h" => (true, 1080),
            other if other.chars().all(|c| c.is_ascii_alphanumeric()) => {
                return Err(format!(
                    "the proxy must be an http or socks5 URL; `{other}` is not supported"
                ));
            }
            // It may be a part of a user and a password.
            _ => return Err("the proxy must be an http or socks5 URL".into()),
        };
        let (rest, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if path.contains('@') {
            // Otherwise a part of the password would be taken for the host, and shown.
            return Err("the password in the proxy's URL must be percent-encoded".into());
        }
        let (user, address) = match rest.rsplit_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, rest),
        };
        let has_port = address
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let address = match has_port {
            true => address.to_owned(),
            false => format!("{address}:{default_port}"),
        };
        let host = address.rsplit_once(':').map_or("", |(host, _)| host);
        let is_ipv6 = host.starts_with('[') && host.ends_with(']');
        let is_name = !host.is_empty() && !host.contains([':', '[', ']']);
        if !(is_ipv6 || is_name) || host.contains(char::is_whitespace) {
            return Err("the proxy's URL has no valid host".into());
        }
        let login = user.map(|user| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            (decoded(name), decoded(password))
        });
        let kind = match is_socks {
            false => Kind::Http {
                authorization: login.map(|(name, password)| {
                    let plain = STANDARD.encode([&name[..], b":", &password].concat());
                    Secret::new(format!("Basic {plain}"))
                }),
            },
            true => Kind::Socks5 {
                login: login.map(|(name, password)| {
                    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                    (text(name), Secret::new(text(password)))
                }),
            },
        };
        Ok(Self { address, kind })
    }

    /// The proxy for connections to `host:port`, from the variables `https_proxy`, `http_proxy`, `all_proxy` and
    /// `no_proxy`, in lower or upper case. Loopback addresses have none.
    ///
    /// # Errors
    ///
    /// As [`Proxy::parse`].
    pub fn from_environment(
        variable: impl Fn(&str) -> Option<String>,
        address: &str,
    ) -> Result<Option<Self>, String> {
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let exceptions = Exceptions::read(&variable);
        if exceptions.cover(host, port.parse().unwrap_or_default()) {
            return Ok(None);
        }
        ["https_proxy", "http_proxy", "all_proxy"]
            .into_iter()
            .find_map(|name| read(&variable, name))
            .map(|url| Self::parse(&url))
            .transpose()
    }

    /// `host:port` of the proxy.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Connects to an address through the proxy, without a time limit.
    ///
    /// # Errors
    ///
    /// As [`Proxy::tunnel`], and if nothing accepts connections at the proxy's address.
    pub async fn connect(&self, target: SocketAddr) -> Result<TcpStream, ProxyError> {
        let socket = TcpStream::connect(&self.address).await;
        let socket = socket.map_err(ProxyError::Unreachable)?;
        self.tunnel(socket, &target.to_string()).await
    }

    /// Turns a connection to the proxy into one to `target`, a `host:port`, without a time limit.
    ///
    /// # Errors
    ///
    /// The proxy refused, or the connection to it failed.
    pub async fn tunnel(&self, socket: TcpStream, target: &str) -> Result<TcpStream, ProxyError> {
        let connected = match &self.kind {
            Kind::Http { authorization } => {
                return tunnel_http(socket, target, authorization.as_ref()).await;
            }
            Kind::Socks5 { login: None } => Socks5Stream::connect_with_socket(socket, target).await,
            Kind::Socks5 {
                login: Some((name, password)),
            } => {
                let password = password.reveal();
                Socks5Stream::connect_with_password_and_socket(socket, target, name, password).await
            }
        };
        match connected {
            Ok(stream) => Ok(stream.into_inner()),
            Err(tokio_socks::Error::Io(error)) => Err(ProxyError::Broken(error)),
            Err(error) => Err(ProxyError::Refused {
                // As with HTTP: repeating does not help, and neither does another address.
                status: is_login(&error).then_some(407),
                text: error.to_string(),
            }),
        }
    }
}

/// Sends CONNECT and reads the response.
async fn tunnel_http(
    mut socket: TcpStream,
    target: &str,
    authorization: Option<&Secret>,
) -> Result<TcpStream, ProxyError> {
    let mut request = format!("CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n");
    if let Some(authorization) = authorization {
        let value = authorization.reveal();
        request.push_str(&format!("proxy-authorization: {value}\r\n"));
    }
    request.push_str("\r\n");
    let written = socket.write_all(request.as_bytes()).await;
    written.map_err(ProxyError::Broken)?;
    let mut response = Vec::new();
    // Byte by byte: what follows the head belongs to the server. It speaks second, so nothing is lost in time.
    while !response.ends_with(b"\r\n\r\n") {
        if response.len() == RESPONSE_BYTES_MAX {
            return Err(ProxyError::Unreadable);
        }
        response.push(socket.read_u8().await.map_err(ProxyError::Broken)?);
    }
    let line = String::from_utf8_lossy(&response);
    let line = line.lines().next().unwrap_or_default();
    let answer = line
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split_once(' '))
        .map(|(_, answer)| answer.trim());
    let status = answer.and_then(|answer| answer.get(..3)?.parse::<u16>().ok());
    match (answer, status) {
        (_, Some(200..=299)) => Ok(socket),
        (Some(answer), Some(status)) => Err(ProxyError::Refused {
            status: Some(status),
            text: answer
                .chars()
                .map(|c| if c.is_control() { ' ' } else { c })
                .take(REASON_CHARS_MAX)
                .collect(),
        }),
        _ => Err(ProxyError::Unreadable),
    }
}

/// Why a proxy made no connection. The text has neither its address nor its password.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    /// Nothing accepts connections at its address.
    #[error("the proxy is not reachable: {0}")]
    Unreachable(io::Error),
    /// The connection to it ended before its response was complete.
    #[error("the proxy closed the connection before its response was complete: {0}")]
    Broken(io::Error),
    /// It does not speak its protocol, or its response is too long.
    #[error("the proxy's response is not one to CONNECT, or too long")]
    Unreadable,
    /// It refused.
    #[error("the proxy refused the connection: {text}")]
    Refused {
        /// The status of its response, if it speaks HTTP.
        status: Option<u16>,
        /// Its own words.
        text: String,
    },
}

impl ProxyError {
    /// Whether the same proxy may still connect to another address of the same host.
    pub fn is_of_address(&self) -> bool {
        match self {
            Self::Refused {
                status: Some(status),
                ..
            } => *status >= 500,
            Self::Refused { status: None, .. } => true,
            Self::Unreachable(_) | Self::Broken(_) | Self::Unreadable => false,
        }
    }

    /// Whether the proxy rejected this server or this destination, which repeating does not change.
    pub fn needs_operator(&self) -> bool {
        // 408, 425 and 429 ask for another try.
        matches!(
            self,
            Self::Refused {
                status: Some(400..=407 | 409..=424 | 426..=428 | 430..=499),
                ..
            }
        )
    }
}

/// Whether a SOCKS5 proxy refused who asks.
fn is_login(error: &tokio_socks::Error) -> bool {
    use tokio_socks::Error;
    matches!(
        error,
        Error::PasswordAuthFailure(_)
            | Error::AuthorizationRequired
            | Error::NoAcceptableAuthMethods
            | Error::InvalidAuthValues(_)
    )
}

/// The protocol of a request, which decides whose variable names its proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxiedScheme {
    /// `HTTP_PROXY`.
    Http,
    /// `HTTPS_PROXY`.
    Https,
}

/// The proxies for requests to any host.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    http: Option<Proxy>,
    https: Option<Proxy>,
    exceptions: Exceptions,
}

impl Proxies {
    /// Reads `http_proxy`, `https_proxy`, `no_proxy`, and `all_proxy` in place of a missing one of the first two, in
    /// lower or upper case.
    ///
    /// # Errors
    ///
    /// A sentence that names the variable, without a full stop.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let proxy = |name: &'static str| {
            let found = [name, "all_proxy"]
                .into_iter()
                .find_map(|name| Some((name, read(&variable, name)?)));
            found
                .map(|(name, url)| {
                    let name = name.to_ascii_uppercase();
                    Proxy::parse(&url).map_err(|why| format!("`{name}` is invalid: {why}"))
                })
                .transpose()
        };
        Ok(Self {
            http: proxy("http_proxy")?,
            https: proxy("https_proxy")?,
            exceptions: Exceptions::read(&variable),
        })
    }

    /// The proxy for requests to a host, which is a name or an address. `localhost`, and loopback and
    /// metadata addresses that are written as such, have none.
    pub fn of(&self, scheme: ProxiedScheme, host: &str, port: u16) -> Option<&Proxy> {
        let proxy = match scheme {
            ProxiedScheme::Http => &self.http,
            ProxiedScheme::Https => &self.https,
        };
        proxy
            .as_ref()
            .filter(|_| !self.exceptions.cover(host, port))
    }
}

/// A variable in lower or upper case, if it has a value.
fn read(variable: &impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    variable(name)
        .filter(|value| !value.is_empty())
        .or_else(|| variable(&name.to_ascii_uppercase()))
        .filter(|value| !value.is_empty())
}

/// The hosts that are connected to without a proxy: a list such as `example.com,.internal,10.0.0.0/8,[::1]:8441,*`.
#[derive(Clone, Debug, Default)]
struct Exceptions(Vec<Exception>);

#[derive(Clone, Debug)]
struct Exception {
    hosts: Hosts,
    port: Option<u16>,
}

#[derive(Clone, Debug)]
enum Hosts {
    All,
    /// Addresses in this network that are written as such. A name is not resolved for this.
    Network(IpNet),
    /// This name and the names below it.
    Name(String),
}

impl Exceptions {
    fn read(variable: &impl Fn(&str) -> Option<String>) -> Self {
        let list = read(variable, "no_proxy").unwrap_or_default();
        let entries = list.split(|c: char| c == ',' || c.is_whitespace());
        Self(entries.filter_map(Exception::parse).collect())
    }

    fn cover(&self, host: &str, port: u16) -> bool {
        let host = host.trim_matches(['[', ']']).trim_end_matches('.');
        let host = host.to_ascii_lowercase();
        let address = host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
        let is_near = host == "localhost"
            || host.ends_with(".localhost")
            || address.is_some_and(|ip| ip.is_loopback() || is_metadata(ip));
        is_near
            || self.0.iter().any(|exception| {
                exception.port.is_none_or(|wanted| wanted == port)
                    && match &exception.hosts {
                        Hosts::All => true,
                        Hosts::Network(network) => address.is_some_and(|ip| network.contains(&ip)),
                        Hosts::Name(name) => host
                            .strip_suffix(&name[..])
                            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.')),
                    }
            })
    }
}

impl Exception {
    fn parse(entry: &str) -> Option<Self> {
        let entry = entry.to_ascii_lowercase();
        let network = |text: &str| {
            let text = text.trim_matches(['[', ']']);
            let address = text.parse::<IpAddr>();
            address.map(IpNet::from).or_else(|_| text.parse()).ok()
        };
        // An IPv6 address without brackets has colons and no port.
        let (host, port) = match entry.rsplit_once(':') {
            Some((host, port)) if network(&entry).is_none() => (host, Some(port.parse().ok()?)),
            _ => (&entry[..], None),
        };
        let hosts = match host {
            "*" => Hosts::All,
            host => match network(host) {
                Some(network) => Hosts::Network(network),
                None => Hosts::Name(host.trim_start_matches("*.").trim_matches('.').to_owned()),
            },
        };
        let is_empty = matches!(&hosts, Hosts::Name(name) if name.is_empty());
        (!is_empty).then_some(Self { hosts, port })
    }
}

/// Decodes `%xx`.
fn decoded(text: &str) -> Vec<u8> {
    let (bytes, mut decoded) = (text.as_bytes(), Vec::new());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let hex = bytes.get(at + 1..at + 3);
        let hex = hex.and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(value) if byte == b'%' => {
                decoded.push(value);
                at += 3;
            }
            _ => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn chosen(variables: &[(&str, &str)], address: &str) -> Result<Option<String>, String> {
        let read = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let proxy = Proxy::from_environment(read, address)?;
        Ok(proxy.map(|proxy| proxy.address))
    }

    fn proxies(variables: &[(&str, &str)]) -> Result<Proxies, String> {
        Proxies::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_refusal_is_final_unless_it_asks_for_another_try() {
        for (status, needs_operator, is_of_address) in [
            (Some(403), true, false),
            (Some(407), true, false),
            (Some(408), false, false),
            (Some(429), false, false),
            (Some(502), false, true),
            (None, false, true),
        ] {
            let text = String::new();
            let refused = ProxyError::Refused { status, text };
            assert_eq!(refused.needs_operator(), needs_operator, "{status:?}");
            assert_eq!(refused.is_of_address(), is_of_address, "{status:?}");
        }
        assert!(is_login(&tokio_socks::Error::PasswordAuthFailure(1)));
        assert!(!is_login(&tokio_socks::Error::HostUnreachable));
    }

    #[test]
    fn each_scheme_has_its_variable_and_its_exceptions() {
        let of = |variables: &[(&str, &str)], scheme, host: &str| {
            let proxies = proxies(variables).unwrap();
            let proxy = proxies.of(scheme, host, 443);
            proxy.map(|proxy| proxy.address().to_owned())
        };
        let (http, https) = (ProxiedScheme::Http, ProxiedScheme::Https);
        let three = [
            ("HTTP_PROXY", "http://a.test:1"),
            ("https_proxy", "http://b.test:2"),
            ("ALL_PROXY", "socks5://c.test:3"),
        ];
        assert_eq!(of(&three, http, "x.test").unwrap(), "a.test:1");
        assert_eq!(of(&three, https, "x.test").unwrap(), "b.test:2");
        assert_eq!(of(&three[..1], https, "x.test"), None);
        assert_eq!(of(&three[2..], https, "x.test").unwrap(), "c.test:3");
        // An empty variable in lower case does not hide the one in upper case.
        let empty = [("https_proxy", ""), ("HTTPS_PROXY", "d.test:4")];
        assert_eq!(of(&empty, https, "x.test").unwrap(), "d.test:4");
        let is_direct = |list: &str, host: &str| {
            let variables = [("https_proxy", "http://b.test:2"), ("NO_PROXY", list)];
            of(&variables, https, host).is_none()
        };
        for (list, host) in [
            ("*", "x.test"),
            ("a.test, x.test", "x.test"),
            (".x.test", "y.x.test"),
            ("*.x.test", "y.X.test."),
            ("x.test:443", "x.test"),
            ("10.0.0.0/8", "10.2.3.4"),
            ("10.2.3.4", "10.2.3.4"),
            ("10.2.3.4", "::ffff:10.2.3.4"),
            ("2001:db8::/32", "2001:db8::1"),
            ("[2001:db8::1]:443", "[2001:db8::1]"),
            ("2001:db8::1", "[2001:db8::1]"),
            ("", "localhost"),
            ("", "a.localhost"),
            ("", "127.3.2.1"),
            ("", "[::1]"),
            ("", "169.254.169.254"),
        ] {
            assert!(is_direct(list, host), "{list}: {host}");
        }
        for (list, host) in [
            ("", "x.test"),
            (",. ,", "x.test"),
            ("est", "x.test"),
            ("x.test:80", "x.test"),
            ("x.test:nonsense", "x.test"),
            ("10.0.0.0/8", "11.2.3.4"),
            ("10.0.0.0/8", "10.test"),
            ("[2001:db8::1]:80", "[2001:db8::1]"),
        ] {
            assert!(!is_direct(list, host), "{list}: {host}");
        }
        let refused = proxies(&[("HTTPS_PROXY", "ftp://u:secret@p.test")]).unwrap_err();
        assert!(
            refused.starts_with("`HTTPS_PROXY` is invalid: "),
            "{refused}"
        );
        assert!(!refused.contains("secret"), "{refused}");
    }

    #[tokio::test]
    async fn unusable_responses_are_errors() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::parse(&listener.local_addr().unwrap().to_string()).unwrap();
        let long = format!("HTTP/1.1 200 {}", "x".repeat(RESPONSE_BYTES_MAX));
        for (answer, expected) in [
            ("SSH-2.0-x\r\n\r\n", "is not one to CONNECT"),
            ("HTTP/1.1 200 OK\r\n", "closed the connection"),
            ("HTTP/1.1 50\r\n\r\n", "is not one to CONNECT"),
            ("HTTP/1.0 502 \u{7}a\r\n\r\n", "502  a"),
            (&long, "too long"),
        ] {
            let serve = async {
                let (mut socket, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(socket.read_u8().await.unwrap());
                }
                socket.write_all(answer.as_bytes()).await.unwrap();
                socket.shutdown().await.unwrap();
            };
            let (result, ()) = tokio::join!(through(&proxy), serve);
            let error = result.unwrap_err().to_string();
            assert!(error.contains(expected), "{answer:.20}: {error}");
        }
    }

    #[test]
    fn variables_choose_the_proxy() {
        let server = "tunnel.example.com:8441";
        let proxy = Ok(Some("p.test:3128".to_owned()));
        for name in ["https_proxy", "HTTPS_PROXY", "http_proxy", "ALL_PROXY"] {
            assert_eq!(chosen(&[(name, "http://p.test:3128")], server), proxy);
        }
        assert_eq!(
            chosen(&[("https_proxy", "p.test")], server),
            Ok(Some("p.test:80".into()))
        );
        assert_eq!(chosen(&[], server), Ok(None));
        assert_eq!(chosen(&[("https_proxy", "")], server), Ok(None));
        let both = |exceptions| {
            let variables = [
                ("https_proxy", "http://p.test:3128"),
                ("no_proxy", exceptions),
            ];
            chosen(&variables, server)
        };
        for exceptions in [
            "*",
            "example.com",
            ".example.com",
            "a, *.example.com",
            "tunnel.example.com:8441",
        ] {
            assert_eq!(both(exceptions), Ok(None), "{exceptions}");
        }
        for exceptions in ["", "ample.com", "example.com:1", "example.org"] {
            assert_eq!(both(exceptions), proxy, "{exceptions}");
        }
        for loopback in ["localhost:8441", "127.0.0.1:1", "[::1]:1"] {
            assert_eq!(
                chosen(&[("https_proxy", "http://p.test:3128")], loopback),
                Ok(None)
            );
        }
        assert_eq!(
            chosen(&[("all_proxy", "socks5://u:secret@p.test")], server),
            Ok(Some("p.test:1080".into()))
        );
        let refused = chosen(&[("all_proxy", "socks4://u:secret@p.test")], server).unwrap_err();
        assert!(
            refused.contains("socks4") && !refused.contains("secret"),
            "{refused}"
        );
    }

    #[test]
    fn a_url_without_a_host_is_refused_without_its_password() {
        for (url, why) in [
            ("http://u:sec/ret@p.test:3128", "percent-encoded"),
            ("http://u:sec?ret@p.test", "percent-encoded"),
            ("socks5://u:sec#ret@p.test", "percent-encoded"),
            ("u:sec://ret@p.test", "must be an http or socks5 URL"),
            ("http://u:secret", "no valid host"),
            ("http://", "no valid host"),
            ("http://:3128", "no valid host"),
            ("http://u:secret@", "no valid host"),
            ("http://p test:1", "no valid host"),
            ("http://::1:3128", "no valid host"),
        ] {
            let refused = Proxy::parse(url).unwrap_err();
            assert!(refused.contains(why), "{url}: {refused}");
            assert!(!refused.contains("sec"), "{url}: {refused}");
        }
        for (url, address) in [
            ("http://[::1]:3128/", "[::1]:3128"),
            ("http://[::1]", "[::1]:80"),
            ("p.test", "p.test:80"),
            ("http://u:sec%2Fret@p.test/?x", "p.test:80"),
        ] {
            assert_eq!(Proxy::parse(url).unwrap().address(), address);
        }
    }

    async fn through(proxy: &Proxy) -> Result<TcpStream, ProxyError> {
        let socket = TcpStream::connect(proxy.address()).await.unwrap();
        proxy.tunnel(socket, "a.test:1").await
    }

    #[tokio::test]
    async fn it_connects_with_the_user_and_says_what_was_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://us%20er:p%40ss@{}", listener.local_addr().unwrap());
        let proxy = Proxy::parse(&url).unwrap();
        let serve = async {
            for answer in [
                "200 Connection established\r\n\r\nafter",
                "407 Who are you\r\n\r\n",
            ] {
                let (mut socket, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(socket.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                assert!(head.starts_with("CONNECT a.test:1 HTTP/1.1\r\nhost: a.test:1\r\n"));
                let user = STANDARD.encode("us er:p@ss");
                assert!(head.contains(&format!("Basic {user}")), "{head}");
                let answer = format!("HTTP/1.1 {answer}");
                socket.write_all(answer.as_bytes()).await.unwrap();
            }
        };
        let dial = async {
            let mut socket = through(&proxy).await.unwrap();
            let mut after = [0; 5];
            socket.read_exact(&mut after).await.unwrap();
            assert_eq!(&after, b"after");
            let error = through(&proxy).await.unwrap_err().to_string();
            assert!(error.ends_with("407 Who are you"), "{error}");
        };
        tokio::join!(serve, dial);
    }

    /// The proxy gets the server's name, the user and the password (RFC 1928 and 1929).
    #[tokio::test]
    async fn a_socks_proxy_resolves_the_name_and_may_refuse() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("socks5://us%20er:p%40ss@{}", listener.local_addr().unwrap());
        let proxy = Proxy::parse(&url).unwrap();
        let serve = async {
            for (code, after) in [(0, &b"after"[..]), (2, b"")] {
                let (mut socket, _) = listener.accept().await.unwrap();
                let mut methods = vec![0; 2];
                socket.read_exact(&mut methods).await.unwrap();
                assert_eq!(methods[0], 5);
                let mut offered = vec![0; methods[1].into()];
                socket.read_exact(&mut offered).await.unwrap();
                assert!(offered.contains(&2));
                socket.write_all(&[5, 2]).await.unwrap();
                let wanted = b"\x01\x05us er\x04p@ss";
                let mut login = vec![0; wanted.len()];
                socket.read_exact(&mut login).await.unwrap();
                assert_eq!(login, wanted);
                socket.write_all(&[1, 0]).await.unwrap();
                let wanted = b"\x05\x01\x00\x03\x06a.test\x00\x01";
                let mut request = vec![0; wanted.len()];
                socket.read_exact(&mut request).await.unwrap();
                assert_eq!(request, wanted);
                let answer = [5, code, 0, 1, 0, 0, 0, 0, 0, 0];
                socket.write_all(&answer).await.unwrap();
                socket.write_all(after).await.unwrap();
            }
        };
        let dial = async {
            let mut socket = through(&proxy).await.unwrap();
            let mut after = [0; 5];
            socket.read_exact(&mut after).await.unwrap();
            assert_eq!(&after, b"after");
            let error = through(&proxy).await.unwrap_err().to_string();
            assert!(error.contains("refused the connection: "), "{error}");
            assert!(!error.contains("p@ss"), "{error}");
        };
        tokio::join!(serve, dial);
    }
}
