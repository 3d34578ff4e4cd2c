//! The sections of the settings, each with its keys and defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use culvert_base::Secret;
use culvert_base::net::HostName;
use culvert_events::HeaderRules;
use culvert_login::{LoginSettings, ProviderSettings};
use culvert_tls::acme::ChallengeKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Invalid;
use super::acme_dns::AcmeDnsSettings;
use super::span::{DAY, Span};

/// A part of culvert that a process may run or leave to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The management API.
    Api,
    /// The reverse proxy.
    Edge,
    /// The agent ingress.
    Agents,
    /// Event delivery.
    Delivery,
}

/// The management API.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Api {
    /// Listen address of the management API and the OpenAPI document. Port 0 selects a free port.
    pub addr: String,
    /// Public base URL for `uri` fields, such as `https://culvert.example.com`. Empty: derived
    /// from the request; events without a request use the address of the API. Set it on nodes
    /// without the role `api`.
    pub base_url: String,
    /// Maximum number of requests per account in a rolling minute; 0 for no limit.
    pub rate_limit_per_minute: u32,
    /// Networks whose `x-forwarded-proto` and `x-forwarded-host` headers are trusted.
    pub trusted_proxies: Vec<String>,
    /// TLS of the API.
    pub tls: ApiTls,
}

/// TLS of the API and the console.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApiTls {
    /// Listen address for HTTPS; empty to disable. Port 0 selects a free port. `api.addr` stays a
    /// listener without TLS: keep it on a loopback address.
    pub addr: String,
    /// PEM file with the certificate chain. Empty: the public certificate for the name that the
    /// client asked for (`acme.domain_certificate`, `acme.names`), otherwise a certificate of the
    /// installation's own CA, whose certificate is `ca.pem` in `data_dir`.
    pub cert_file: String,
    /// PEM file with the private key of `api.tls.cert_file`.
    pub key_file: String,
}

impl Default for Api {
    fn default() -> Self {
        Self {
            addr: "127.0.0.1:8420".into(),
            base_url: String::new(),
            rate_limit_per_minute: 0,
            trusted_proxies: Vec::new(),
            tls: ApiTls::default(),
        }
    }
}

impl Api {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        if self.tls.cert_file.is_empty() && !self.tls.key_file.is_empty() {
            return Err(Invalid(
                "`api.tls.key_file` requires `api.tls.cert_file`".into(),
            ));
        }
        if self.tls.addr.is_empty() && !self.tls.cert_file.is_empty() {
            return Err(Invalid(
                "`api.tls.cert_file` requires `api.tls.addr`".into(),
            ));
        }
        Ok(())
    }
}

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
    /// Networks whose forwarding headers are trusted: the edge keeps the headers and appends to
    /// them.
    pub trusted_proxies: Vec<String>,
    /// Whether the edge redirects plain `http://` requests for a host that has only an `https`
    /// endpoint: 301 for GET and HEAD, 308 for other methods. With `false` the edge returns 404.
    pub redirect_http: bool,
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
    /// limit, or of half the machine's memory if that is less.
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
            public_http_port: 0,
            public_https_port: 0,
            tcp_ports: "20000-20999".into(),
            allow_private_upstreams: true,
            trusted_proxies: Vec::new(),
            redirect_http: true,
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
            timeouts: EdgeTimeouts::default(),
            geo_database: String::new(),
            asn_database: String::new(),
            ip_categories: Vec::new(),
        }
    }
}

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
        let limits = culvert_edge::Limits::default();
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
    pub(super) fn check(&self) -> Result<(), Invalid> {
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

/// The agent ingress.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Agents {
    /// Listen address for agents, with TLS; empty to disable. Port 0 selects a free port.
    pub addr: String,
    /// Listen address for reverse tunnels over SSH (`ssh -R`); empty to disable. Port 0 selects a
    /// free port.
    pub ssh_addr: String,
    /// PEM file with the certificate chain that the agent ingress presents. Empty: a certificate
    /// of the installation's own CA, whose certificate is `ca.pem` in `data_dir`.
    pub cert_file: String,
    /// PEM file with the private key of `agents.cert_file`.
    pub key_file: String,
    /// Additional host names and addresses for the agent ingress certificate of the
    /// installation's own CA. The certificate already covers `edge.domain`, `connect.` plus
    /// `edge.domain`, the node name, `localhost` and its addresses, and the domains of agent
    /// ingresses.
    pub names: Vec<String>,
    /// Addresses as `host:port` that the server offers to agents with several connections
    /// (multi-leg agents in Go); at least two, all of this process. The first address replaces
    /// the one that the agent connected to. Empty: one connection per agent.
    pub connect_addresses: Vec<String>,
    /// How long the host names and TCP addresses of a disconnected agent stay reserved for their
    /// owner. Published agents may need more than two minutes to reconnect after a long outage.
    /// `0s` disables the reservation.
    pub name_reservation: Span,
    /// Minimum agent version to announce, such as `3.5.0`; empty for none. Events of sessions
    /// with an older agent are marked in `deprecated`. The server does not reject older agents.
    pub minimum_version: String,
    /// Announced date from which older agents are rejected, such as `2027-01-31`, for those
    /// events.
    pub minimum_version_date: String,
    /// Message to the owners of older agents, for those events. Empty: a message that names the
    /// version.
    pub minimum_version_message: String,
}

impl Default for Agents {
    fn default() -> Self {
        Self {
            addr: "0.0.0.0:8441".into(),
            ssh_addr: "0.0.0.0:2222".into(),
            cert_file: String::new(),
            key_file: String::new(),
            names: Vec::new(),
            connect_addresses: Vec::new(),
            name_reservation: Span(Duration::from_secs(180)),
            minimum_version: String::new(),
            minimum_version_date: String::new(),
            minimum_version_message: String::new(),
        }
    }
}

impl Agents {
    /// The minimum version of agents, if one is set.
    pub fn minimum(&self) -> Option<culvert_control::AgentMinimum> {
        let version = Some(&self.minimum_version).filter(|version| !version.is_empty())?;
        Some(culvert_control::AgentMinimum {
            version: version.clone(),
            date: self.minimum_version_date.clone(),
            message: match self.minimum_version_message.as_str() {
                "" => format!("Update the agent to version {version} or later."),
                message => message.to_owned(),
            },
        })
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        if self.cert_file.is_empty() && !self.key_file.is_empty() {
            return Err(Invalid(
                "`agents.key_file` requires `agents.cert_file`".into(),
            ));
        }
        let is_version = |text: &str| {
            text.split('.').all(|part| {
                !part.is_empty() && part.len() <= 9 && part.bytes().all(|b| b.is_ascii_digit())
            })
        };
        if !self.minimum_version.is_empty() && !is_version(&self.minimum_version) {
            return Err(Invalid(format!(
                "`agents.minimum_version` must be a dotted version such as `3.5.0`, not `{}`",
                self.minimum_version
            )));
        }
        for (key, text) in [
            ("date", &self.minimum_version_date),
            ("message", &self.minimum_version_message),
        ] {
            if self.minimum_version.is_empty() && !text.is_empty() {
                return Err(Invalid(format!(
                    "`agents.minimum_version_{key}` requires `agents.minimum_version`"
                )));
            }
        }
        let date = &self.minimum_version_date;
        let midnight = format!("{date}T00:00:00Z");
        if !date.is_empty() && culvert_base::Timestamp::parse(&midnight).is_none() {
            return Err(Invalid(format!(
                "`agents.minimum_version_date` must be a date such as `2027-01-31`, not `{date}`"
            )));
        }
        for name in &self.names {
            let is_address = name.parse::<std::net::IpAddr>().is_ok();
            if !is_address && HostName::parse(name).is_err() {
                return Err(Invalid(format!(
                    "`agents.names` contains `{name}`, which is neither a host name nor an IP address"
                )));
            }
        }
        if self.name_reservation.0 > DAY {
            return Err(Invalid(
                "`agents.name_reservation` must be at most 24h".into(),
            ));
        }
        if self.connect_addresses.len() == 1 {
            return Err(Invalid(
                "`agents.connect_addresses` must have at least two addresses or be empty".into(),
            ));
        }
        for address in &self.connect_addresses {
            let parts = address.rsplit_once(':');
            let is_place = parts.is_some_and(|(host, port)| {
                let is_host =
                    HostName::parse(host).is_ok() || host.parse::<std::net::Ipv4Addr>().is_ok();
                is_host && port.parse::<u16>().is_ok_and(|port| port > 0)
            });
            if !is_place {
                return Err(Invalid(format!(
                    "`agents.connect_addresses` contains `{address}`, which is not `host:port`"
                )));
            }
        }
        Ok(())
    }
}

/// Connections between the nodes of the installation.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Nodes {
    /// Listen address for other nodes on the same `database_url`, which reach this node's agents
    /// through it, with mutual TLS; empty to disable. Port 0 selects a free port. Ignored without
    /// `database_url`.
    pub addr: String,
    /// Address as `host:port` that other nodes connect to. Empty: the source address of this
    /// machine's connection to the database, with the port of `nodes.addr`.
    pub advertised_addr: String,
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            addr: "0.0.0.0:8442".into(),
            advertised_addr: String::new(),
        }
    }
}

impl Nodes {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        let is_address = |text: &str| {
            let (host, port) = text.rsplit_once(':')?;
            (!host.is_empty()).then_some(port)?.parse::<u16>().ok()
        };
        if self.advertised_addr.is_empty() || is_address(&self.advertised_addr).is_some() {
            return Ok(());
        }
        Err(Invalid(format!(
            "`nodes.advertised_addr` must be a host and port such as `10.0.0.7:8442`, not `{}`",
            self.advertised_addr
        )))
    }
}

/// Managed certificates.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Acme {
    /// Directory URL (RFC 8555) of the CA for managed certificates, such as
    /// `https://acme-v02.api.letsencrypt.org/directory`. Setting it accepts the CA's terms of
    /// service. Empty: managed domains report that no CA is configured. A CA at a private address
    /// must be in `destinations.allow_networks`.
    pub directory_url: String,
    /// Contact of the operator for the CA: an e-mail address or a `mailto:` URL.
    pub contact: String,
    /// PEM file of additional certificate authorities to verify the directory server.
    pub extra_ca_file: String,
    /// Challenges for names without a wildcard, in order of preference: `http-01` on port 80,
    /// `tls-alpn-01` on port 443. After a failure the next challenge is tried.
    pub challenges: Vec<String>,
    /// Program that writes TXT records for wildcards (dns-01). It runs without a shell and gets
    /// three arguments, `add` or `remove`, the name and the value, which are also in
    /// `CULVERT_DNS_ACTION`, `CULVERT_DNS_NAME` and `CULVERT_DNS_VALUE`. It must exit with 0 once
    /// the record is visible.
    pub dns_hook: String,
    /// Timeout of the program, at most `3m`.
    pub dns_hook_timeout: Span,
    /// First retry delay. The delay doubles after each failure, up to 1 h. Errors that need
    /// action by the domain owner start at 5× this delay, capped at 6 h.
    pub retry_after: Span,
    /// Whether `edge.domain` and its subdomains get a public certificate, with a wildcard. Requires
    /// `acme.dns.provider` or `acme.dns_hook`. The edge, the agent ingress and the API present it.
    /// Until the CA has issued it, they present certificates of the installation's own CA.
    pub domain_certificate: bool,
    /// Other public names of this installation that get a certificate, such as those of the API or
    /// the agent ingress outside of `edge.domain`.
    pub names: Vec<String>,
    /// External account that the account at the CA is bound to (RFC 8555 7.3.4).
    pub external_account: ExternalAccountSettings,
    /// Built-in DNS providers, which write TXT records for wildcards (dns-01).
    pub dns: AcmeDnsSettings,
}

/// An external account at the CA.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExternalAccountSettings {
    /// ID of the key that the CA gave out; empty if the CA requires none.
    pub key_id: String,
    /// The key, base64url. Secret: set it by environment variable.
    pub hmac_key: String,
}

impl Default for Acme {
    fn default() -> Self {
        Self {
            directory_url: String::new(),
            contact: String::new(),
            extra_ca_file: String::new(),
            challenges: vec!["http-01".into(), "tls-alpn-01".into()],
            dns_hook: String::new(),
            dns_hook_timeout: Span(Duration::from_secs(60)),
            retry_after: Span(Duration::from_secs(60)),
            domain_certificate: false,
            names: Vec::new(),
            external_account: ExternalAccountSettings::default(),
            dns: AcmeDnsSettings::default(),
        }
    }
}

impl Acme {
    /// The installation's own public names. Each list becomes one certificate.
    pub(crate) fn own_names(&self, domain: &str) -> Result<Vec<Vec<HostName>>, Invalid> {
        let parse = |name: &str| {
            HostName::parse(name).map_err(|error| {
                Invalid(format!(
                    "`acme.names` contains `{name}`, which is not a valid host name: {error}"
                ))
            })
        };
        let mut own = Vec::new();
        if self.domain_certificate {
            own.push(vec![parse(domain)?, parse(&format!("*.{domain}"))?]);
        }
        for name in &self.names {
            let name = parse(name)?;
            if name.is_wildcard() {
                let text = format!("`acme.names` contains `{name}`; wildcards are not supported");
                return Err(Invalid(text));
            }
            own.push(vec![name]);
        }
        own.dedup();
        Ok(own)
    }

    /// The secrets, to be hidden.
    pub(super) fn secrets(&mut self) -> impl Iterator<Item = &mut String> {
        let hmac_key = &mut self.external_account.hmac_key;
        self.dns.secrets().into_iter().chain([hmac_key])
    }

    /// The external account, if there is one: the ID of its key, and the key.
    pub(crate) fn external_account(&self) -> Option<(String, Secret)> {
        let ExternalAccountSettings { key_id, hmac_key } = &self.external_account;
        // Authorities give keys out with and without padding.
        let hmac_key = hmac_key.trim().trim_end_matches('=').to_owned();
        (!key_id.is_empty()).then(|| (key_id.clone(), Secret::new(hmac_key)))
    }

    /// The challenge types. Only types that a listener responds to are valid here.
    pub(crate) fn challenges(&self) -> Result<Vec<ChallengeKind>, Invalid> {
        let kind = |name: &String| match ChallengeKind::parse(name.trim()) {
            Some(kind) if kind != ChallengeKind::Dns01 => Ok(kind),
            _ => Err(Invalid(format!(
                "`acme.challenges` contains `{name}`; valid values are `http-01` and `tls-alpn-01`"
            ))),
        };
        self.challenges.iter().map(kind).collect()
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        let is_https = |text: &str| url::Url::parse(text).is_ok_and(|url| url.scheme() == "https");
        if !self.directory_url.is_empty() && !is_https(&self.directory_url) {
            return Err(Invalid(
                "`acme.directory_url` must be an `https://` URL".into(),
            ));
        }
        if !self.contact.is_empty() && !self.contact.contains('@') {
            return Err(Invalid(
                "`acme.contact` must be an e-mail address such as `ops@example.com`".into(),
            ));
        }
        if self.dns_hook_timeout.0 > Duration::from_secs(180) {
            return Err(Invalid(
                "`acme.dns_hook_timeout` must be at most `3m`".into(),
            ));
        }
        self.dns.check()?;
        if !self.dns.provider.is_empty() && !self.dns_hook.is_empty() {
            return Err(Invalid(
                "`acme.dns.provider` and `acme.dns_hook` must not be set together".into(),
            ));
        }
        if self.external_account.key_id.is_empty() != self.external_account.hmac_key.is_empty() {
            return Err(Invalid(
                "`acme.external_account.key_id` and `acme.external_account.hmac_key` must be set together"
                    .into(),
            ));
        }
        let needs = |key: &str, what: &str| Err(Invalid(format!("`{key}` requires {what}")));
        if self.directory_url.is_empty() {
            for (key, is_set) in [
                ("acme.domain_certificate", self.domain_certificate),
                ("acme.names", !self.names.is_empty()),
            ] {
                if is_set {
                    return needs(key, "`acme.directory_url`");
                }
            }
        }
        if self.domain_certificate && self.dns.provider.is_empty() && self.dns_hook.is_empty() {
            return needs(
                "acme.domain_certificate",
                "`acme.dns.provider` or `acme.dns_hook`",
            );
        }
        self.challenges().map(drop)
    }
}

/// Traffic policies.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Handling of a rule whose expression fails: `skip` ignores the rule, `deny` rejects the
    /// request with 500 or closes the connection. Failures are counted in both cases.
    pub on_expression_error: OnExpressionError,
    /// Whether the action `http-request` may call public hosts. Otherwise it can call only
    /// internal endpoints of the account. Addresses that are not public must be in
    /// `destinations.allow_networks`.
    pub http_request_public: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            on_expression_error: OnExpressionError::Skip,
            http_request_public: false,
        }
    }
}

/// Handling of a rule whose expression fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnExpressionError {
    Skip,
    Deny,
}

/// Sign-ins of traffic policies.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Oauth {
    /// Public base URL of a shared OAuth callback, such as `https://login.example.com`;
    /// `/oauth2/callback` is appended. Its host must resolve to this edge. Empty: each endpoint
    /// uses its own callback, `https://<host>/culvert/oauth2/callback`.
    pub callback_base: String,
    /// Providers of the action `oauth`.
    pub providers: Box<OauthProviders>,
}

/// Providers of the action `oauth`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OauthProviders {
    /// Amazon.
    pub amazon: OauthProvider,
    /// Facebook.
    pub facebook: OauthProvider,
    /// GitHub.
    pub github: OauthProvider,
    /// GitLab.
    pub gitlab: OauthProvider,
    /// Google.
    pub google: OauthProvider,
    /// LinkedIn.
    pub linkedin: OauthProvider,
    /// Microsoft.
    pub microsoft: OauthProvider,
    /// Twitch.
    pub twitch: OauthProvider,
}

/// A provider of the action `oauth`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OauthProvider {
    /// Authorization endpoint; empty for the provider's default.
    pub authorize_url: String,
    /// Token endpoint; empty for the provider's default.
    pub token_url: String,
    /// User info endpoint; empty for the provider's default.
    pub userinfo_url: String,
    /// Default OAuth client ID for policies that do not set one.
    pub client_id: String,
    /// OAuth client secret. Set it by environment variable.
    pub client_secret: String,
}

impl Oauth {
    fn each(&self) -> [(&'static str, &OauthProvider); 8] {
        let providers = &self.providers;
        [
            ("amazon", &providers.amazon),
            ("facebook", &providers.facebook),
            ("github", &providers.github),
            ("gitlab", &providers.gitlab),
            ("google", &providers.google),
            ("linkedin", &providers.linkedin),
            ("microsoft", &providers.microsoft),
            ("twitch", &providers.twitch),
        ]
    }

    /// The settings of sign-ins, except for `allows_loopback`.
    pub(crate) fn logins(&self) -> Result<LoginSettings, Invalid> {
        let url = |key: String, text: &str| {
            if text.is_empty() {
                return Ok(None);
            }
            let url = url::Url::parse(text)
                .ok()
                .filter(|url| matches!(url.scheme(), "https" | "http") && url.has_host());
            let wrong = || {
                Invalid(format!(
                    "`{key}` must be a URL such as `https://id.example.com`"
                ))
            };
            url.map(Some).ok_or_else(wrong)
        };
        let callback_base = url("oauth.callback_base".into(), &self.callback_base)?;
        if callback_base
            .as_ref()
            .is_some_and(|url| url.query().is_some() || url.fragment().is_some())
        {
            return Err(Invalid(
                "`oauth.callback_base` must not have a query".into(),
            ));
        }
        let mut providers = BTreeMap::new();
        for (name, provider) in self.each() {
            let key = |field: &str| format!("oauth.providers.{name}.{field}");
            let app = match (provider.client_id.as_str(), provider.client_secret.as_str()) {
                ("", "") => None,
                (id, secret) if !id.is_empty() && !secret.is_empty() => {
                    Some((id.to_owned(), Secret::new(secret.to_owned())))
                }
                _ => {
                    let (id, secret) = (key("client_id"), key("client_secret"));
                    return Err(Invalid(format!(
                        "`{id}` and `{secret}` must be set together"
                    )));
                }
            };
            let settings = ProviderSettings {
                authorize_url: url(key("authorize_url"), &provider.authorize_url)?,
                token_url: url(key("token_url"), &provider.token_url)?,
                userinfo_url: url(key("userinfo_url"), &provider.userinfo_url)?,
                app,
            };
            providers.insert(name.to_owned(), settings);
        }
        Ok(LoginSettings {
            callback_base,
            providers,
            allows_loopback: false,
        })
    }
}

/// Prometheus metrics.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Listen address of `/metrics`; empty to disable. Port 0 selects a free port.
    pub addr: String,
    /// Maximum number of endpoints with metrics of their own, those with the earliest traffic; the
    /// others are counted together with the label `other`. Each endpoint adds about 30 time series.
    pub endpoints_max: u32,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            addr: "127.0.0.1:9420".into(),
            endpoints_max: 100,
        }
    }
}

/// Objects that the first start creates.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Bootstrap {
    /// Token to install as the first admin key, created with `culvert admin generate-token`.
    /// Secret: set it by environment variable.
    pub api_key: String,
}

impl Bootstrap {
    /// Checks the format of the token, if one is set.
    pub(crate) fn check(&self) -> Result<(), Invalid> {
        if self.api_key.is_empty() || culvert_control::token::is_token(&self.api_key) {
            return Ok(());
        }
        Err(Invalid(
            "`bootstrap.api_key` is not a valid token; create one with `culvert admin generate-token`".into(),
        ))
    }
}

/// Secrets at rest.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Secrets {
    /// File with the master key (64 hex digits), mode 0600. Empty: `master.key` in `data_dir`,
    /// which the first start creates. All nodes on one database must use the same key.
    pub key_file: String,
}

/// The audit log.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Audit {
    /// Retention of audit events, such as `365d`; at least `30d`.
    pub retention: Span,
}

impl Default for Audit {
    fn default() -> Self {
        Self {
            retention: Span(365 * DAY),
        }
    }
}

/// Capture and retention of traffic events.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Events {
    /// Headers whose values are `[redacted]` in traffic events, in addition to credential
    /// headers. An empty list disables all redaction of headers.
    pub redact_headers: Vec<String>,
    /// Query parameters whose values are `[redacted]` in traffic events, in URLs and in headers
    /// that contain URLs, in addition to credential parameters. An empty list disables all
    /// redaction of query parameters. Names ignore case, `-` and `_`.
    pub redact_query: Vec<String>,
    /// Retention of traffic events with all fields for queries (`GET /events`) and replays
    /// (`culvert events replay`). `0s` disables retention and deletes retained events. Use the
    /// same value on every node.
    pub traffic_retention: Span,
    /// Maximum size of retained traffic events on disk in bytes, after compression; the oldest
    /// are deleted first. At least 1 MiB.
    pub traffic_retention_bytes: u64,
    /// Maximum memory of captured requests and responses (action `capture`) until they are stored,
    /// in bytes. When it is used up, traffic continues and bodies are omitted. `0` disables
    /// captures.
    pub capture_memory_bytes: u64,
    /// Stream name and subject prefix of an `event_log` in NATS: letters, digits, `-` and `_`.
    /// Empty: `culvert_` and a name of the installation. Two installations must not share a
    /// stream.
    pub log_stream: String,
    /// Number of replicas of the stream in a NATS cluster, 1 to 5, used when the stream is
    /// created.
    pub log_replicas: u8,
}

impl Events {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        if self.log_stream.len() > 64 || !self.log_stream.chars().all(is_name) {
            return Err(Invalid(
                "`events.log_stream` must be at most 64 letters, digits, `-` and `_`".into(),
            ));
        }
        if !(1..=5).contains(&self.log_replicas) {
            return Err(Invalid("`events.log_replicas` must be 1 to 5".into()));
        }
        Ok(())
    }
}

impl Default for Events {
    fn default() -> Self {
        let lower = |name: &str| name.to_ascii_lowercase();
        Self {
            redact_headers: HeaderRules::REDACTED.map(lower).to_vec(),
            redact_query: HeaderRules::PARAMETERS.map(lower).to_vec(),
            traffic_retention: Span(Duration::from_secs(24 * 60 * 60)),
            traffic_retention_bytes: 1 << 30,
            capture_memory_bytes: 32 << 20,
            log_stream: String::new(),
            log_replicas: 1,
        }
    }
}

/// Event destinations.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Destinations {
    /// Private, loopback or otherwise special networks that event destinations, certificate
    /// authorities and requests of the edge may connect to.
    pub allow_networks: Vec<String>,
    /// Whether destinations may use plain `http://`.
    pub allow_plain_http: bool,
    /// The `file` target.
    pub file: FileTarget,
    /// TLS to destinations.
    pub tls: DestinationTls,
    /// AWS destinations.
    pub aws: AwsDestinations,
    /// Datadog destinations.
    pub datadog: DatadogDestinations,
    /// Azure destinations.
    pub azure: AzureDestinations,
}

/// AWS destinations.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AwsDestinations {
    /// Endpoint URL for all AWS services. Empty: the variable `AWS_ENDPOINT_URL`, or the default.
    pub endpoint_url: String,
    /// Amazon Data Firehose.
    pub firehose: AwsService,
    /// Amazon Kinesis.
    pub kinesis: AwsService,
    /// Amazon CloudWatch Logs.
    pub logs: AwsService,
    /// Amazon S3.
    pub s3: AwsService,
    /// AWS STS, which issues the keys of roles.
    pub sts: AwsService,
}

impl AwsDestinations {
    /// The services by the name in their hosts, with their settings.
    pub fn services(&self) -> [(&'static str, &AwsService); 5] {
        [
            ("firehose", &self.firehose),
            ("kinesis", &self.kinesis),
            ("logs", &self.logs),
            ("s3", &self.s3),
            ("sts", &self.sts),
        ]
    }
}

/// An AWS service.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AwsService {
    /// Endpoint URL of this service. Empty: the variable `AWS_ENDPOINT_URL_` plus the service
    /// name in capitals, or the default.
    pub endpoint_url: String,
}

/// Datadog destinations.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DatadogDestinations {
    /// Base URL that replaces `https://http-intake.logs.` plus the site.
    pub base_url: String,
    /// Additional sites that `ddsite` accepts.
    pub sites: Vec<String>,
}

/// Azure destinations.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AzureDestinations {
    /// URL that replaces `https://login.microsoftonline.com`.
    pub authority_url: String,
}

/// The `file` target.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FileTarget {
    /// Root directory of `file` destinations. Empty: `events` in `data_dir`.
    pub root: String,
}

/// TLS to destinations.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DestinationTls {
    /// PEM file of additional certificate authorities.
    pub extra_ca_file: String,
}

/// Shutdown.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Shutdown {
    /// Time for requests in flight to finish at shutdown, such as `30s`.
    pub drain: Span,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self {
            drain: Span(Duration::from_secs(30)),
        }
    }
}

/// Logging.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// `text`, `json` or `auto` (text on a terminal, otherwise JSON).
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug`, `trace`, or a list such as `info,culvert_edge=debug`.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            format: LogFormat::Auto,
            level: "info".into(),
        }
    }
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, otherwise JSON.
    Auto,
    /// Text.
    Text,
    /// JSON, one object per line.
    Json,
}
