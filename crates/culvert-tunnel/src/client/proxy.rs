//! Proxies on the way to the server, HTTP and SOCKS5, from the variables that other programs use.
//!
//! The clients' own connectors of the HTTP library read these variables too, but only together with its pools and
//! resolvers; the agent needs one CONNECT.

use std::fmt;
use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_base::Secret;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_socks::tcp::Socks5Stream;

use super::interface::{self, Interface};

/// Maximum size of a proxy's response.
const RESPONSE_BYTES_MAX: usize = 16 << 10;

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
    /// Resolves the server's name itself.
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
            _ => {
                return Err(format!(
                    "the proxy must be an http or socks5 URL; `{scheme}` is not supported"
                ));
            }
        };
        let rest = rest.split(['/', '?', '#']).next().unwrap_or_default();
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
        if address.starts_with(':') || address.contains(char::is_whitespace) {
            return Err("the proxy's URL has no host".into());
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
        let read = |name: &str| {
            variable(name)
                .or_else(|| variable(&name.to_ascii_uppercase()))
                .filter(|value| !value.is_empty())
        };
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
        let is_loopback = host == "localhost"
            || host.ends_with(".localhost")
            || host
                .parse::<std::net::IpAddr>()
                .is_ok_and(|ip| ip.is_loopback());
        let exceptions = read("no_proxy").unwrap_or_default();
        if is_loopback || is_excepted(&exceptions, &host, port) {
            return Ok(None);
        }
        ["https_proxy", "http_proxy", "all_proxy"]
            .into_iter()
            .find_map(read)
            .map(|url| Self::parse(&url))
            .transpose()
    }

    /// `host:port` of the proxy.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Connects to `target`, a `host:port`, through the proxy, from the interface if there is one.
    pub(crate) async fn connect(
        &self,
        target: &str,
        interface: Option<&Interface>,
    ) -> io::Result<TcpStream> {
        let socket = interface::connect(interface, &self.address).await?;
        let connected = match &self.kind {
            Kind::Http { authorization } => {
                return self
                    .connect_http(socket, target, authorization.as_ref())
                    .await;
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
            Err(tokio_socks::Error::Io(error)) => Err(error),
            Err(error) => Err(io::Error::other(format!(
                "the proxy {} refused the connection: {error}",
                self.address
            ))),
        }
    }

    async fn connect_http(
        &self,
        mut socket: TcpStream,
        target: &str,
        authorization: Option<&Secret>,
    ) -> io::Result<TcpStream> {
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n");
        if let Some(authorization) = authorization {
            let value = authorization.reveal();
            request.push_str(&format!("proxy-authorization: {value}\r\n"));
        }
        request.push_str("\r\n");
        socket.write_all(request.as_bytes()).await?;
        let mut response = Vec::new();
        // Byte by byte: what follows the head belongs to the server. It speaks second, so nothing is lost in time.
        while !response.ends_with(b"\r\n\r\n") {
            if response.len() == RESPONSE_BYTES_MAX {
                return Err(io::Error::other("the proxy's response is too long"));
            }
            response.push(socket.read_u8().await?);
        }
        let line = String::from_utf8_lossy(&response);
        let line = line.lines().next().unwrap_or_default();
        match line.split(' ').nth(1) {
            Some("200") => Ok(socket),
            _ => Err(io::Error::other(format!(
                "the proxy {} refused the connection: {}",
                self.address,
                line.split_once(' ').map_or(line, |(_, status)| status)
            ))),
        }
    }
}

/// Whether a list such as `example.com,.internal,10.0.0.1:8441,*` names the host.
fn is_excepted(list: &str, host: &str, port: &str) -> bool {
    list.split([',', ' '])
        .map(|entry| entry.trim().to_ascii_lowercase())
        .filter(|entry| !entry.is_empty())
        .any(|entry| {
            let (name, entry_port) = match entry.rsplit_once(':') {
                Some((name, port)) if port.parse::<u16>().is_ok() && !name.contains(':') => {
                    (name, Some(port))
                }
                _ => (&entry[..], None),
            };
            let name = name.trim_start_matches("*.").trim_start_matches('.');
            let has_name = entry == "*"
                || host == name
                || host
                    .strip_suffix(name)
                    .is_some_and(|rest| rest.ends_with('.'));
            has_name && entry_port.is_none_or(|wanted| wanted == port)
        })
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
            let mut socket = proxy.connect("a.test:1", None).await.unwrap();
            let mut after = [0; 5];
            socket.read_exact(&mut after).await.unwrap();
            assert_eq!(&after, b"after");
            let error = proxy
                .connect("a.test:1", None)
                .await
                .unwrap_err()
                .to_string();
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
            let mut socket = proxy.connect("a.test:1", None).await.unwrap();
            let mut after = [0; 5];
            socket.read_exact(&mut after).await.unwrap();
            assert_eq!(&after, b"after");
            let error = proxy
                .connect("a.test:1", None)
                .await
                .unwrap_err()
                .to_string();
            assert!(error.contains("refused the connection: "), "{error}");
            assert!(!error.contains("p@ss"), "{error}");
        };
        tokio::join!(serve, dial);
    }
}
