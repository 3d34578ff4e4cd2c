//! The reverse proxy.

use std::time::Duration;

use culvert_base::net::{AllowedPaths, HostName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Invalid;
use super::span::{DAY, Span};

/// The reverse proxy.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EdgeSettings {
    /// Listen address for plain HTTP; empty to disable. Port 0 selects a free port.
    pub http_addr: String,
    /// Listen address for TLS; empty to disable. Port 0 selects a free port.
    pub https_addr: String,
    /// Platform domain; endpoints use its subdomains.
    pub domain: String,
    /// Names directly below `edge.domain` that belong to the installation: accounts can neither serve nor reserve them, nor a
    /// name below them. `acme-challenge` and `tcp` belong to it in any case.
    pub reserved_names: Vec<String>,
    /// Port of `http` endpoints in public URLs, if a load balancer listens on a different port
    /// than this process; 0 for the port of `edge.http_addr`.
    pub public_http_port: u16,
    /// Port of `https` and `tls` endpoints in public URLs, if a load balancer listens on a
    /// different port than this process; 0 for the port of `edge.https_addr`.
    pub public_https_port: u16,
    /// Port range for TCP endpoints, first and last port.
    pub tcp_ports: String,
    /// Whether endpoints may forward to loopback and private addresses.
    pub allow_private_upstreams: bool,
    /// Unix sockets that endpoints may forward to: absolute paths of sockets, or of directories with
    /// all sockets below them. Symbolic links that lead elsewhere are not followed. By default
    /// none, because a socket such as `/run/docker.sock` gives its users the whole machine.
    pub allow_unix_upstreams: Vec<String>,
    /// Directories whose files endpoints may serve (`file:///srv/site`): absolute paths, each with all
    /// directories below it. Symbolic links that lead elsewhere are not followed. By default none.
    pub allow_file_upstreams: Vec<String>,
    /// Networks whose forwarding headers are trusted: the edge keeps the headers and appends to
    /// them.
    pub trusted_proxies: Vec<String>,
    /// Whether the edge redirects plain `http://` requests for a host that has only an `https`
    /// endpoint: 301 for GET and HEAD, 308 for other methods. With `false` the edge returns 404.
    pub redirect_http: bool,
    /// Host name that the edge assumes for TLS clients that send no server name (SNI), such as very
    /// old ones and health checks of some load balancers: they get its certificate and its
    /// endpoint, and events show it. Empty to refuse such clients.
    pub default_server_name: String,
    /// Whether the edge accepts clients of TLS 1.2 without extended master secret (RFC 7627), which
    /// were made before about 2016. By default it refuses them and logs it at most once a minute.
    /// Where a client certificate is requested, they are always refused.
    pub tls12_without_ems: bool,
    /// Directory of HTML templates for the edge's own responses to browsers: `404.html` for one
    /// status, `4xx.html` and `5xx.html` for the others of a class, `default.html` for all others.
    /// Empty for the built-in pages.
    pub error_pages: String,
    /// Whether the edge forwards request headers with `_` in their name. By default the edge
    /// removes them, because many servers cannot distinguish `X_Forwarded_For` from
    /// `X-Forwarded-For`.
    pub underscore_headers: bool,
    /// Listeners that require a PROXY protocol header, version 1 or 2, on connections from
    /// `edge.proxy_protocol_from`: any of `http`, `https`, `tcp`,
    /// `kubernetes`.
    pub proxy_protocol: Vec<ProxiedListener>,
    /// Networks of the load balancers that send the PROXY protocol header. Headers from other
    /// addresses are not trusted.
    pub proxy_protocol_from: Vec<String>,
    /// Number of threads dedicated to traffic; each connection stays on one thread. 0 for one
    /// thread per two cores.
    pub threads: u32,
    /// Memory limit of the process in bytes. The edge sheds load at 70, 85 and 95 percent of this
    /// limit, or of half the memory of the machine or of a control group (systemd's
    /// `MemoryMax`, a container's limit) if that is less.
    pub memory_bytes: u64,
    /// Maximum length of a request body in bytes; longer bodies get 413. 0 for no limit.
    pub body_bytes_max: u64,
    /// Maximum number of concurrent connections.
    pub connections_max: u32,
    /// Maximum number of concurrent connections per source (an IPv4 address or an IPv6 /64).
    pub connections_per_source_max: u32,
    /// PEM file of additional certificate authorities to verify upstreams.
    pub extra_ca_file: String,
    /// PEM files, each with a certificate chain and its private key. The edge presents them for
    /// the names they cover, unless a reserved domain has its own certificate.
    pub certificates: Vec<String>,
    /// How old the configuration may be that the edge serves from while the database is away; a
    /// node that lost the database does not learn that an endpoint was changed, deleted or made
    /// by another owner. Then every endpoint returns 503 until the database is back. A node that
    /// starts meanwhile serves from the copy in `edge.db`, if it is not older. 0 for no limit and
    /// no copy, otherwise at least `10s`. Without effect on SQLite.
    pub copy_age_max: Span,
    /// Default timeouts of requests; an endpoint can override them.
    pub timeouts: EdgeTimeouts,
    /// MMDB file of locations, such as GeoLite2-City, for the policy variables `conn.geo` and
    /// `conn.client_ip.geo`. Required on every process that runs the edge or the API.
    pub geo_database: String,
    /// MMDB file of autonomous systems, such as GeoLite2-ASN, for the variables `conn.client_ip.as`.
    pub asn_database: String,
    /// Lists of networks for the variables `conn.client_ip.categories`, `is_on_blocklist` and
    /// `is_tor_node`, each as `name=file`. A file has one network or address per line. The names
    /// `blocklist` and `tor` set the last two variables.
    pub ip_categories: Vec<String>,
}

impl Default for EdgeSettings {
    fn default() -> Self {
        Self {
            http_addr: "0.0.0.0:8080".into(),
            https_addr: "0.0.0.0:8443".into(),
            domain: "culvert.localhost".into(),
            reserved_names: RESERVED_NAMES.map(str::to_owned).to_vec(),
            public_http_port: 0,
            public_https_port: 0,
            tcp_ports: "20000-20999".into(),
            allow_private_upstreams: true,
            allow_unix_upstreams: Vec::new(),
            allow_file_upstreams: Vec::new(),
            trusted_proxies: Vec::new(),
            redirect_http: true,
            default_server_name: String::new(),
            tls12_without_ems: false,
            error_pages: String::new(),
            underscore_headers: false,
            proxy_protocol: Vec::new(),
            proxy_protocol_from: Vec::new(),
            threads: 0,
            memory_bytes: 512 << 20,
            body_bytes_max: 0,
            connections_max: 16_384,
            connections_per_source_max: 1_024,
            extra_ca_file: String::new(),
            certificates: Vec::new(),
            copy_age_max: Span(DAY),
            timeouts: EdgeTimeouts::default(),
            geo_database: String::new(),
            asn_database: String::new(),
            ip_categories: Vec::new(),
        }
    }
}

impl EdgeSettings {
    /// # Errors
    ///
    /// If a limit would refuse all traffic, or a timeout is out of range.
    pub(super) fn check(&self) -> Result<(), Invalid> {
        for (key, limit) in [
            ("connections_max", self.connections_max),
            (
                "connections_per_source_max",
                self.connections_per_source_max,
            ),
        ] {
            if limit == 0 {
                return Err(Invalid(format!("`edge.{key}` must be at least 1, not 0")));
            }
        }
        if self.memory_bytes < MEMORY_BYTES_MIN {
            return Err(Invalid(format!(
                "`edge.memory_bytes` must be at least {MEMORY_BYTES_MIN}, not {}",
                self.memory_bytes
            )));
        }
        for name in &self.reserved_names {
            let is_label = HostName::parse(name).is_ok_and(|it| *it == **name && !it.contains('.'));
            if !is_label {
                return Err(Invalid(format!(
                    "`edge.reserved_names`: `{name}` is not one label of a host name, such as `api`"
                )));
            }
        }
        let name = &self.default_server_name;
        if !name.is_empty() && !HostName::parse(name).is_ok_and(|it| *it == **name) {
            return Err(Invalid(format!(
                "`edge.default_server_name`: `{name}` is not a host name in lower case, such as `app.example.com`"
            )));
        }
        self.allowed_sockets()?;
        self.allowed_folders()?;
        let age = self.copy_age_max.0;
        if !age.is_zero() && age < COPY_AGE_LEAST {
            return Err(Invalid(format!(
                "`edge.copy_age_max` must be 0 or at least `10s`, not `{}`",
                String::from(self.copy_age_max)
            )));
        }
        self.timeouts.check()
    }

    /// Unix sockets that endpoints may forward to.
    ///
    /// # Errors
    ///
    /// If a path is not absolute, or has a part `..`.
    pub fn allowed_sockets(&self) -> Result<AllowedPaths, Invalid> {
        paths("allow_unix_upstreams", &self.allow_unix_upstreams)
    }

    /// Directories whose files endpoints may serve.
    ///
    /// # Errors
    ///
    /// If a path is not absolute, or has a part `..`.
    pub fn allowed_folders(&self) -> Result<AllowedPaths, Invalid> {
        paths("allow_file_upstreams", &self.allow_file_upstreams)
    }

    /// How old the configuration may be, if there is a limit.
    pub fn copy_age_max(&self) -> Option<Duration> {
        Some(self.copy_age_max.0).filter(|age| !age.is_zero())
    }
}

fn paths(key: &str, given: &[String]) -> Result<AllowedPaths, Invalid> {
    AllowedPaths::parse(given).map_err(|path| {
        Invalid(format!(
            "`edge.{key}`: `{path}` is not an absolute path without `..`, such as `/run/app`"
        ))
    })
}

/// The default of `edge.reserved_names`. Some are not in use yet, but stay free for future pages of the installation.
const RESERVED_NAMES: [&str; 7] = [
    "admin", "api", "auth", "connect", "console", "login", "metrics",
];

/// With less, a short fail-over of the database would stop all traffic.
const COPY_AGE_LEAST: Duration = Duration::from_secs(10);

/// With less memory, the edge would shed all traffic.
const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// Timeouts of requests. An endpoint can override them.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EdgeTimeouts {
    /// Timeout to connect to an upstream, including the TLS handshake.
    pub connect: Span,
    /// Timeout from the end of the request to the first byte of the response head. Does not apply
    /// to gRPC calls to an HTTP/2 upstream, because servers may send the head with the first
    /// message.
    pub first_byte: Span,
    /// Timeout without a byte in either direction during a response, or on an upgraded, TCP or
    /// TLS connection. TCP keep-alive detects lost peers within two minutes regardless of this
    /// value.
    pub idle: Span,
    /// Longest time that a client may read nothing while data is pending. A client that has read
    /// little so far is disconnected after two minutes, and so is a client that stays below 256
    /// bytes per second. The timeout does not apply once the client has read all pending data.
    pub write: Span,
    /// Timeout without a byte of the request body before the upstream starts to respond; the body
    /// must also arrive at 256 bytes per second. Does not apply to gRPC calls to an HTTP/2
    /// upstream.
    pub request: Span,
}

impl Default for EdgeTimeouts {
    fn default() -> Self {
        let limits = culvert_edge_config::Limits::default();
        Self {
            connect: Span(limits.connect),
            first_byte: Span(limits.answer),
            idle: Span(limits.tunnel_idle),
            write: Span(limits.write_stall),
            request: Span(limits.body_stall),
        }
    }
}

impl EdgeTimeouts {
    /// # Errors
    ///
    /// If a timeout is shorter than 100ms or longer than a week.
    fn check(&self) -> Result<(), Invalid> {
        for (key, time) in [
            ("connect", self.connect),
            ("first_byte", self.first_byte),
            ("idle", self.idle),
            ("write", self.write),
            ("request", self.request),
        ] {
            if !(Duration::from_millis(100)..=7 * DAY).contains(&time.0) {
                return Err(Invalid(format!(
                    "`edge.timeouts.{key}` must be from `100ms` to `7d`, not `{}`",
                    String::from(time)
                )));
            }
        }
        Ok(())
    }
}

/// A listener of the edge that can be behind a load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProxiedListener {
    /// `edge.http_addr`.
    Http,
    /// `edge.https_addr`.
    Https,
    /// The ports of TCP endpoints.
    Tcp,
    /// `kubernetes.addr`.
    Kubernetes,
}
