//! The services that traffic is forwarded to: their URLs, HTTP versions and agents.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use culvert_base::net::{HostName, SocketPath, folder_of_url};
use culvert_base::{Refusal, code};
use culvert_io::proxy::ProxyVersion;
use culvert_policy::Scheme;

use crate::guard::is_private;
use crate::tls::TlsOptions;

/// A service that traffic is forwarded to: scheme, host and port of a URL, a Unix socket, a folder, or the agents of an endpoint; its HTTP version
/// and its TLS options. Each value has its own connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Upstream {
    scheme: UpstreamScheme,
    host: String,
    port: u16,
    protocol: Protocol,
    /// `None` for the default.
    tls: Option<Arc<TlsOptions>>,
    /// The version of the PROXY header that each connection begins with. That of agents is in the scheme.
    proxy: Option<ProxyVersion>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum UpstreamScheme {
    Http,
    Https,
    Tcp,
    /// At a Unix socket of this machine; the host is its path, and there is no port.
    Unix {
        is_http: bool,
    },
    /// The files of a folder of this machine; the host is its path, and there is no port.
    Folder,
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
        let (scheme, host, port) = match read_plain(url) {
            Some(parts) => parts,
            None => read(url).map_err(|why| invalid_url(&why))?,
        };
        Ok(Self {
            scheme,
            host,
            port,
            protocol: Protocol::parse(protocol)?,
            tls: None,
            proxy: None,
        })
    }

    /// The same whose connections begin with a PROXY header, before TLS, if there is a version. Then each has one client.
    #[must_use]
    pub fn with_proxy(self, proxy: Option<ProxyVersion>) -> Self {
        Self { proxy, ..self }
    }

    /// The version of the PROXY header that its connections begin with, if agents do not serve it.
    pub(crate) fn proxy(&self) -> Option<ProxyVersion> {
        self.proxy
    }

    /// The same with these options of TLS. They do not apply without TLS.
    #[must_use]
    pub fn with_tls(self, options: Arc<TlsOptions>) -> Self {
        Self {
            tls: self.is_tls().then_some(options),
            ..self
        }
    }

    /// Its options of TLS; `None` for the default.
    pub fn tls(&self) -> Option<&TlsOptions> {
        self.tls.as_deref()
    }

    /// As [`Self::parse`], for the upstream of an endpoint: a port, `:port` or `host:port` is a service of the endpoint's
    /// kind, and a port alone one of this machine. So is the URL of a Unix socket ([`SocketPath::of_url`]).
    /// The URL of a folder ([`folder_of_url`]) is a service of HTTP/1.1.
    ///
    /// # Errors
    ///
    /// Code 18014 with a sentence that describes the error.
    pub fn of_endpoint(url: &str, protocol: &str, is_http: bool) -> Result<Self, Refusal> {
        if let Some(folder) = folder_of_url(url) {
            return Self::of_folder(folder.map_err(|why| invalid_url(&why))?, protocol);
        }
        let Some(socket) = SocketPath::of_url(url) else {
            return Self::parse(&with_scheme(url, is_http), protocol);
        };
        let socket = socket.map_err(|why| invalid_url(&why))?;
        Ok(Self {
            scheme: UpstreamScheme::Unix {
                is_http: is_http || url.starts_with("http"),
            },
            host: socket.as_str().to_owned(),
            port: 0,
            protocol: Protocol::parse(protocol)?,
            tls: None,
            proxy: None,
        })
    }

    fn of_folder(path: PathBuf, protocol: &str) -> Result<Self, Refusal> {
        if Protocol::parse(protocol)? == Protocol::Http2 {
            return Err(invalid_url(&"a folder is served with the protocol http1"));
        }
        // The URL was text.
        let path = path.into_os_string().into_string();
        Ok(Self {
            scheme: UpstreamScheme::Folder,
            host: path.map_err(|_| invalid_url(&"its path must be UTF-8"))?,
            port: 0,
            protocol: Protocol::Http1,
            tls: None,
            proxy: None,
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
            tls: None,
            proxy: None,
        }
    }

    /// How its streams are opened if agents serve it: their scheme, the version of the PROXY header they begin with, and
    /// the clients that share one.
    pub(crate) fn agent_streams(&self) -> Option<(Scheme, Option<ProxyVersion>, Clients)> {
        match self.scheme {
            UpstreamScheme::Agent(scheme, proxy, clients) => Some((scheme, proxy, clients)),
            UpstreamScheme::Http
            | UpstreamScheme::Https
            | UpstreamScheme::Tcp
            | UpstreamScheme::Unix { .. }
            | UpstreamScheme::Folder => None,
        }
    }

    /// The path of its Unix socket, if it is at one.
    pub fn socket(&self) -> Option<&Path> {
        matches!(self.scheme, UpstreamScheme::Unix { .. }).then(|| Path::new(&self.host))
    }

    /// The path of its folder, if it is one.
    pub fn folder(&self) -> Option<&Path> {
        (self.scheme == UpstreamScheme::Folder).then(|| Path::new(&self.host))
    }

    /// The id of the endpoint, if agents serve it.
    pub fn agents_endpoint(&self) -> Option<&str> {
        matches!(self.scheme, UpstreamScheme::Agent(..)).then_some(&*self.host)
    }

    /// Whether clients never share connections.
    pub fn keeps_clients_apart(&self) -> bool {
        self.proxy.is_some() || matches!(self.scheme, UpstreamScheme::Agent(_, _, Clients::Apart))
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
            UpstreamScheme::Http | UpstreamScheme::Https | UpstreamScheme::Folder => true,
            UpstreamScheme::Tcp => false,
            UpstreamScheme::Unix { is_http } => is_http,
            UpstreamScheme::Agent(scheme, ..) => scheme.is_http(),
        }
    }

    /// Whether its host is a private address or `localhost`. The addresses of a name are checked when it is dialled.
    pub fn is_private(&self) -> bool {
        match self.host.parse() {
            Ok(address) => is_private(address),
            // A path has no port.
            Err(_) if self.port == 0 => false,
            Err(_) => self.host == "localhost" || self.host.ends_with(".localhost"),
        }
    }

    /// Host name or address, without brackets, or the path of a Unix socket or folder.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Its port; 0 for a Unix socket, a folder or agents.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its host, with the port unless that is the default one: the `Host` of health checks. A Unix socket or folder has
    /// no name, and counts as `localhost`, as for nginx.
    pub(crate) fn authority(&self) -> String {
        match (self.scheme, self.port) {
            (UpstreamScheme::Unix { .. } | UpstreamScheme::Folder, _) => "localhost".to_owned(),
            (UpstreamScheme::Https, 443) | (UpstreamScheme::Http, 80) => self.host.clone(),
            (_, port) => format!("{}:{port}", self.host),
        }
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            UpstreamScheme::Http => "http",
            UpstreamScheme::Https => "https",
            UpstreamScheme::Tcp => "tcp",
            UpstreamScheme::Unix { .. } => return write!(f, "unix:{}", self.host),
            UpstreamScheme::Folder => return write!(f, "file://{}", escaped(&self.host)),
            UpstreamScheme::Agent(..) => return write!(f, "agents of {}", self.host),
        };
        if self.host.contains(':') {
            write!(f, "{scheme}://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{scheme}://{}:{}", self.host, self.port)
        }
    }
}

impl Protocol {
    fn parse(text: &str) -> Result<Self, Refusal> {
        match text {
            "" | "http1" => Ok(Self::Http1),
            "http2" => Ok(Self::Http2),
            _ => Err(Refusal::new(
                code::ENDPOINT_FIELD_INVALID,
                "the upstream_protocol must be http1 or http2",
            )),
        }
    }
}

/// A path with the one character escaped that would be read as another.
fn escaped(path: &str) -> String {
    path.replace('%', "%25")
}

fn invalid_url(why: &dyn fmt::Display) -> Refusal {
    Refusal::new(
        code::ENDPOINT_FIELD_INVALID,
        format!("the `upstream_url` is invalid: {why}"),
    )
}

/// A port, `:port` or `host:port` with the scheme that it stands for, and the host. Another text stays as it is.
fn with_scheme(url: &str, is_http: bool) -> Cow<'_, str> {
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let scheme = if is_http { "http" } else { "tcp" };
    match url.rsplit_once(':') {
        None if is_port(url) => format!("{scheme}://localhost:{url}").into(),
        Some(("", port)) if is_port(port) => format!("{scheme}://localhost:{port}").into(),
        Some((_, port)) if is_port(port) && !url.contains("//") => {
            format!("{scheme}://{url}").into()
        }
        _ => url.into(),
    }
}

/// The scheme, host and port of a URL, or why it is refused.
fn read(url: &str) -> Result<(UpstreamScheme, String, u16), String> {
    let wrong = |why: &str| Err(why.to_owned());
    if url.len() > 2048 {
        return wrong("it is longer than 2048 bytes");
    }
    let parsed = match url::Url::parse(url) {
        Ok(parsed) => parsed,
        Err(url::ParseError::RelativeUrlWithoutBase) => {
            return wrong(
                "it has no scheme; write a port, `host:port`, or a URL such as `http://host:port`",
            );
        }
        Err(error) => return Err(error.to_string()),
    };
    let scheme = match parsed.scheme() {
        "http" => UpstreamScheme::Http,
        "https" => UpstreamScheme::Https,
        "tcp" => UpstreamScheme::Tcp,
        _ => return wrong("its scheme must be http, https, tcp, unix or file"),
    };
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return wrong("it must not contain a user or password");
    }
    if !matches!(parsed.path(), "" | "/") || parsed.query().is_some() || parsed.fragment().is_some()
    {
        return wrong("it must end after the port");
    }
    let host = parsed.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let host = match (bare.parse::<IpAddr>(), HostName::parse(host)) {
        (Ok(address), _) => address.to_string(),
        (_, Ok(name)) if !name.is_wildcard() => name.to_string(),
        _ => return wrong("its host is neither a host name nor an IP address"),
    };
    match (parsed.port_or_known_default(), scheme) {
        (Some(port), _) if port > 0 => Ok((scheme, host, port)),
        _ => wrong("it must have a port between 1 and 65535"),
    }
}

/// What [`read`] returns for a URL that is spelled as nearly all are: a scheme, a host and perhaps a port, in lower case,
/// without anything to decode. `None` for all others. A server that starts reads the URLs of all its endpoints, and this
/// takes a fraction of the general parser's time.
fn read_plain(url: &str) -> Option<(UpstreamScheme, String, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let (scheme, port_default) = match scheme {
        "http" => (UpstreamScheme::Http, Some(80)),
        "https" => (UpstreamScheme::Https, Some(443)),
        "tcp" => (UpstreamScheme::Tcp, None),
        _ => return None,
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = match rest.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (rest, None),
    };
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._".contains(&b);
    if !host.bytes().all(is_plain) || host.contains("xn--") {
        return None;
    }
    let port: u16 = match port {
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => port.parse().ok()?,
        Some(_) => return None,
        None => port_default?,
    };
    // An address in another notation is no host name.
    let host = match host.parse::<Ipv4Addr>() {
        Ok(address) => address.to_string(),
        Err(_) => HostName::parse(host).ok()?.to_string(),
    };
    (url.len() <= 2048 && port > 0).then_some((scheme, host, port))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn usual_urls_need_no_general_parser() {
        for url in [
            "http://127.0.0.1:3000",
            "http://localhost",
            "https://service-1.a_b.example/",
            "tcp://a.example:22",
        ] {
            assert!(read_plain(url).is_some(), "{url}");
            assert_eq!(read_plain(url), read(url).ok());
        }
    }

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

    #[test]
    fn the_upstream_of_an_endpoint_may_be_a_port() {
        for (url, http, tcp) in [
            ("3000", "http://localhost:3000", "tcp://localhost:3000"),
            (":3000", "http://localhost:3000", "tcp://localhost:3000"),
            (
                "localhost:3000",
                "http://localhost:3000",
                "tcp://localhost:3000",
            ),
            ("10.0.0.1:80", "http://10.0.0.1:80", "tcp://10.0.0.1:80"),
            ("[::1]:80", "http://[::1]:80", "tcp://[::1]:80"),
            (
                "https://a.example",
                "https://a.example:443",
                "https://a.example:443",
            ),
        ] {
            for (is_http, shown) in [(true, http), (false, tcp)] {
                let upstream = Upstream::of_endpoint(url, "", is_http).unwrap();
                assert_eq!(upstream.to_string(), shown, "{url}");
            }
        }
        for (url, is_http, shown) in [
            ("unix:/run/app.sock", true, "unix:/run/app.sock"),
            ("unix:///run/app.sock", false, "unix:/run/app.sock"),
            ("http://unix:/run/app.sock", true, "unix:/run/app.sock"),
        ] {
            let upstream = Upstream::of_endpoint(url, "", is_http).unwrap();
            assert_eq!(upstream.to_string(), shown, "{url}");
            assert_eq!(upstream.socket(), Some(Path::new("/run/app.sock")));
            assert_eq!(upstream.is_http(), is_http);
            let again = Upstream::of_endpoint(shown, "", is_http);
            assert_eq!(again, Ok(upstream));
            // The URLs of third parties name no socket.
            assert!(Upstream::parse(url, "").is_err());
        }
        for (url, shown) in [
            ("file:///srv/site/", "file:///srv/site"),
            ("file:///srv/100%25", "file:///srv/100%25"),
        ] {
            let upstream = Upstream::of_endpoint(url, "", true).unwrap();
            assert!(upstream.folder().is_some() && upstream.is_http());
            assert_eq!(upstream.to_string(), shown);
            assert_eq!(Upstream::of_endpoint(shown, "", true), Ok(upstream));
            assert!(Upstream::of_endpoint(url, "http2", true).is_err());
            assert!(Upstream::parse(url, "").is_err());
        }
        let spelled = Upstream::of_endpoint("http://unix:/run/app.sock", "", false).unwrap();
        assert!(spelled.is_http());
        for (url, why) in [
            (
                "unix:app.sock",
                "the path of a Unix socket must be absolute",
            ),
            ("web", "it has no scheme; write a port"),
            ("", "it has no scheme; write a port"),
            ("0", "it must have a port"),
            ("99999", "invalid port number"),
            ("u@a:80", "it must not contain a user"),
            ("a/b:80", "it must end after the port"),
        ] {
            let refused = Upstream::of_endpoint(url, "", true).unwrap_err();
            assert!(refused.message.contains(why), "{url}: {refused}");
        }
    }

    proptest! {
        #[test]
        fn plain_urls_are_read_as_the_general_parser_reads_them(
            scheme in "(https?|tcp|HTTP|ftp|http:|)",
            host in "([a-zA-Z0-9._-]{0,12}|[0-9]{1,3}(\\.[0-9]{1,3}){0,4}|0x[0-9a-f]{1,4}|xn--[a-z0-9-]{1,6}|[*%@ \\[:]a|(a{30}\\.?){1,9})",
            port in "(|:|:[0-9]{1,6}|:[a-z+-]1)",
            end in "(||/|//|/a|\\?|#)",
        ) {
            let url = format!("{scheme}://{host}{port}{end}");
            if let Some(plain) = read_plain(&url) {
                prop_assert_eq!(Ok(plain), read(&url), "{}", url);
            }
        }

        #[test]
        fn any_text_is_parsed_or_refused(url in "\\PC{0,60}", protocol in "\\PC{0,6}") {
            if let Ok(upstream) = Upstream::parse(&url, &protocol) {
                prop_assert_eq!(Upstream::parse(&upstream.to_string(), &protocol), Ok(upstream));
            }
        }
    }
}
