//! The sections of the settings, each with its keys and defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use culvert_base::Secret;
use culvert_edge::acme::ChallengeKind;
use culvert_edge::login::{LoginSettings, ProviderSettings};
use culvert_events::HeaderRules;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Invalid;
use super::span::{DAY, Span};

/// A part of culvert that a process may run or leave to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The management API.
    Api,
    /// The reverse proxy.
    Edge,
    /// The ingress of agents.
    Agents,
    /// The sending of events.
    Delivery,
}

/// The management API.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Api {
    /// Address of the management API and the OpenAPI document. Port 0 picks a free one.
    pub addr: String,
    /// Public base of `uri` fields, such as `https://culvert.example.com`. Empty: from the request; in
    /// events that no request caused, the address of the API. A node without the role `api` should have it.
    pub base_url: String,
    /// Calls per account in a rolling minute; 0 for no limit.
    pub rate_limit_per_minute: u32,
    /// Networks whose `x-forwarded-proto` and `x-forwarded-host` are believed.
    pub trusted_proxies: Vec<String>,
}

impl Default for Api {
    fn default() -> Self {
        Self {
            addr: "127.0.0.1:8420".into(),
            base_url: String::new(),
            rate_limit_per_minute: 0,
            trusted_proxies: Vec::new(),
        }
    }
}

/// The reverse proxy.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EdgeSettings {
    /// Address of plain HTTP; empty switches it off. Port 0 picks a free one.
    pub http_addr: String,
    /// Address of TLS; empty switches it off. Port 0 picks a free one.
    pub https_addr: String,
    /// Platform base domain; endpoints get names below it.
    pub domain: String,
    /// Port of `http` endpoints in their public URLs, where a load balancer has another than this
    /// process; 0 for the one that is bound.
    pub public_http_port: u16,
    /// The same of `https` and `tls` endpoints.
    pub public_https_port: u16,
    /// Pool of public ports for TCP endpoints, first and last.
    pub tcp_ports: String,
    /// Whether endpoints may forward to loopback and private addresses.
    pub allow_private_upstreams: bool,
    /// Networks whose forwarding headers are kept and appended to.
    pub trusted_proxies: Vec<String>,
    /// Whether plain `http://` of a host that only an `https` endpoint has is redirected there: 301 for GET
    /// and HEAD, 308 for other methods. With `false` it gets 404.
    pub redirect_http: bool,
    /// Whether request headers with `_` in their name are passed on. By default they are removed: many
    /// servers cannot tell `X_Forwarded_For` from `X-Forwarded-For`.
    pub underscore_headers: bool,
    /// Listeners whose connections begin with a header of the PROXY protocol, version 1 or 2, when
    /// they come from `edge.proxy_protocol_from`: any of `http`, `https`, `tcp`.
    pub proxy_protocol: Vec<ProxiedListener>,
    /// Networks of the load balancers that send that header. Nobody else's is believed.
    pub proxy_protocol_from: Vec<String>,
    /// Threads that serve traffic and nothing else, each connection on one of them; 0 for one per
    /// two cores.
    pub threads: u32,
    /// Memory of the process, in bytes, near which the edge sheds load: at 70, 85 and 95 percent of
    /// it, or of half of what the machine gives if that is less.
    pub memory_bytes: u64,
    /// Bytes of one request's body; one that is longer gets 413. 0 for no limit.
    pub body_bytes_max: u64,
    /// Connections at once, in all.
    pub connections_max: u32,
    /// Connections at once from one source (an IPv4 address or an IPv6 /64).
    pub connections_per_source_max: u32,
    /// PEM file of further certificate authorities that upstreams may be certified by.
    pub extra_ca_file: String,
    /// PEM files, each a certificate chain with its private key, presented for the names they hold
    /// unless a reserved domain has a certificate of its own.
    pub certificates: Vec<String>,
    /// How long the steps of an exchange may take, unless its endpoint says otherwise.
    pub timeouts: EdgeTimeouts,
    /// MMDB file of places, such as GeoLite2-City, for the variables `conn.geo` and `conn.client_ip.geo` of traffic
    /// policies. Every process that runs the edge or the API needs it.
    pub geo_database: String,
    /// MMDB file of autonomous systems, such as GeoLite2-ASN, for the variables `conn.client_ip.as`.
    pub asn_database: String,
    /// Lists of networks for the variables `conn.client_ip.categories`, `is_on_blocklist` and `is_tor_node`:
    /// `name=file` each. A file has a network or an address in each line. The names `blocklist` and `tor` are those
    /// of the last two variables.
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

/// How long the steps of an exchange may take. An endpoint may have times of its own.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EdgeTimeouts {
    /// To connect to an upstream, TLS handshake included.
    pub connect: Span,
    /// From the whole request to the first byte of the answer's head. gRPC calls to an upstream that
    /// speaks HTTP/2 have no such limit, because servers may send the head with the first message.
    pub first_byte: Span,
    /// Without a byte in either direction while an answer is on its way, or on a connection that was
    /// upgraded or carries TCP or TLS. Peers that are gone without a word are found by TCP keep-alive
    /// within two minutes, whatever this says.
    pub idle: Span,
    /// The longest time that a client may take nothing of what waits for it: a client that has taken
    /// little so far is cut after two minutes, and one that takes less than 256 bytes a second for long.
    /// A client that has taken everything is not waited for.
    pub write: Span,
    /// Without a byte of a request's body while the upstream has not begun to answer; it must also come
    /// with 256 bytes a second. gRPC calls to an upstream that speaks HTTP/2 have no such limits.
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
    /// When a time is shorter than 100ms or longer than a week.
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

/// A listener of the edge that load balancers may connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProxiedListener {
    /// `edge.http_addr`.
    Http,
    /// `edge.https_addr`.
    Https,
    /// The ports of TCP endpoints.
    Tcp,
}

/// The ingress of agents.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Agents {
    /// Address that agents dial, with TLS; empty switches it off. Port 0 picks a free one.
    pub addr: String,
    /// Address of reverse tunnels over SSH (`ssh -R`); empty switches it off. Port 0 picks a free one.
    pub ssh_addr: String,
    /// PEM file of the certificate that agents are shown, with its chain. Empty: one of the
    /// installation's own authority, whose certificate is `ca.pem` in `data_dir`.
    pub cert_file: String,
    /// PEM file of its private key.
    pub key_file: String,
    /// Further names and addresses that agents dial, for the certificate of the installation's own
    /// authority. It holds `connect.` and `edge.domain`, `edge.domain`, the name of the node,
    /// `localhost` and its addresses, and the domains of agent ingresses.
    pub names: Vec<String>,
    /// Addresses, `host:port`, that agents which can have several connections at once (Go, with
    /// multi-leg) are offered for them; at least two, all of this process. The first stands for the one
    /// that the agent dialled. Empty: one connection each.
    pub connect_addresses: Vec<String>,
    /// How long the names and TCP addresses of an agent whose session ended are reserved for their
    /// owner: no other owner gets them before. Published agents take more than two minutes to come back
    /// after a long outage; 0 seconds reserves nothing.
    pub name_reservation: Span,
    /// Version that agents will have to have, such as `3.5.0`; empty: none. Events of sessions with an
    /// older agent say so in `deprecated`. Nothing is refused.
    pub minimum_version: String,
    /// When older agents will be refused, such as `2027-01-31`, for those events.
    pub minimum_version_date: String,
    /// Sentence for the owners of older agents, for those events. Empty: one that names the version.
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
    /// The version that was announced.
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
                "`agents.key_file` needs `agents.cert_file` beside it".into(),
            ));
        }
        let is_version = |text: &str| {
            text.split('.').all(|part| {
                !part.is_empty() && part.len() <= 9 && part.bytes().all(|b| b.is_ascii_digit())
            })
        };
        if !self.minimum_version.is_empty() && !is_version(&self.minimum_version) {
            return Err(Invalid(format!(
                "`agents.minimum_version` must be numbers with points between them such as `3.5.0`, not `{}`",
                self.minimum_version
            )));
        }
        for (key, text) in [
            ("date", &self.minimum_version_date),
            ("message", &self.minimum_version_message),
        ] {
            if self.minimum_version.is_empty() && !text.is_empty() {
                return Err(Invalid(format!(
                    "`agents.minimum_version_{key}` needs `agents.minimum_version` beside it"
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
            if !is_address && culvert_base::net::HostName::parse(name).is_err() {
                return Err(Invalid(format!(
                    "`agents.names` has `{name}`, which is neither a host name nor an address"
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
                "`agents.connect_addresses` must have two addresses at least, or none".into(),
            ));
        }
        for address in &self.connect_addresses {
            let parts = address.rsplit_once(':');
            let is_place = parts.is_some_and(|(host, port)| {
                let is_host = culvert_base::net::HostName::parse(host).is_ok()
                    || host.parse::<std::net::Ipv4Addr>().is_ok();
                is_host && port.parse::<u16>().is_ok_and(|port| port > 0)
            });
            if !is_place {
                return Err(Invalid(format!(
                    "`agents.connect_addresses` has `{address}`, which is not `host:port` with a host name"
                )));
            }
        }
        Ok(())
    }
}

/// Other nodes of the installation.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Nodes {
    /// Address at which other nodes on the same `database_url` reach the agents of this one, with TLS
    /// in which both sides show a certificate of the installation; empty switches it off. Port 0 picks
    /// a free one. Not used without `database_url`.
    pub addr: String,
    /// `host:port` that the others dial; empty for the address from which this machine reaches the
    /// database, with the port of `nodes.addr`.
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
    /// Directory of the authority (RFC 8555) that managed certificates come from, such as
    /// `https://acme-v02.api.letsencrypt.org/directory`. Naming one agrees to its terms of service.
    /// Empty: managed domains show that there is none. An authority whose address is not public needs its
    /// network in `destinations.allow_networks`.
    pub directory_url: String,
    /// Where the authority may write to the operator: an e-mail address or a `mailto:` URL.
    pub contact: String,
    /// PEM file of further certificate authorities that the directory itself may be certified by.
    pub extra_ca_file: String,
    /// Challenges that are answered for names that are no wildcards, the preferred one first:
    /// `http-01` on port 80, `tls-alpn-01` on port 443. After a failure the next one is tried.
    pub challenges: Vec<String>,
    /// Program that writes TXT records, for wildcards (dns-01). Called without a shell and with three
    /// arguments: `add` or `remove`, the name, the value; the same are in `CULVERT_DNS_ACTION`,
    /// `CULVERT_DNS_NAME` and `CULVERT_DNS_VALUE`. It exits with 0 once the record can be seen.
    pub dns_hook: String,
    /// How long the program may take, at most `3m`.
    pub dns_hook_timeout: Span,
    /// How long after a first failure it is tried again. The wait doubles, up to an hour; it begins
    /// with five times as much, up to six hours, where the owner of a domain has to mend something.
    pub retry_after: Span,
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
        }
    }
}

impl Acme {
    /// The challenges, which are of the kinds a listener can answer.
    pub(crate) fn challenges(&self) -> Result<Vec<ChallengeKind>, Invalid> {
        let kind = |name: &String| match ChallengeKind::parse(name.trim()) {
            Some(kind) if kind != ChallengeKind::Dns01 => Ok(kind),
            _ => Err(Invalid(format!(
                "`acme.challenges` has `{name}`; there are `http-01` and `tls-alpn-01`"
            ))),
        };
        self.challenges.iter().map(kind).collect()
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        let is_https = |text: &str| url::Url::parse(text).is_ok_and(|url| url.scheme() == "https");
        if !self.directory_url.is_empty() && !is_https(&self.directory_url) {
            return Err(Invalid(
                "`acme.directory_url` must be a URL that begins with `https://`".into(),
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
        self.challenges().map(drop)
    }
}

/// Traffic policies.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// What becomes of a rule whose expression fails: `skip` passes over it, `deny` refuses the
    /// request with 500 or closes the connection. Failures are counted either way.
    pub on_expression_error: OnExpressionError,
    /// Whether the action `http-request` may go to public hosts. Without it internal endpoints of the
    /// account are all it reaches. Addresses that are not public are refused in any case, unless
    /// `destinations.allow_networks` has them.
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

/// What becomes of a rule whose expression fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnExpressionError {
    Skip,
    Deny,
}

/// Log-ins of traffic policies.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Oauth {
    /// Public base of the one address that identity providers send users back to, such as
    /// `https://login.example.com`: `/oauth2/callback` is added. Its host must lead to this edge.
    /// Empty: each endpoint has an address of its own, `https://<host>/culvert/oauth2/callback`.
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
    /// Where users log in; empty for the provider's own address.
    pub authorize_url: String,
    /// Where codes are exchanged for tokens; empty for the provider's own address.
    pub token_url: String,
    /// Where the provider says who a user is; empty for the provider's own address.
    pub userinfo_url: String,
    /// Id of the application at this provider that policies use which name none; empty for none.
    pub client_id: String,
    /// Its secret. Set it by environment.
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

    /// What log-ins are held to, `allows_loopback` aside.
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
                    return Err(Invalid(format!("`{id}` and `{secret}` go together")));
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
    /// Address of `/metrics`; empty switches it off. Port 0 picks a free one.
    pub addr: String,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            addr: "127.0.0.1:9420".into(),
        }
    }
}

/// What the first start makes.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Bootstrap {
    /// Token to install as the first admin key, as `culvert admin generate-token` prints one.
    /// Secret: set it by environment.
    pub api_key: String,
}

impl Bootstrap {
    /// The token, if there is one, has the shape that every key's has.
    pub(crate) fn check(&self) -> Result<(), Invalid> {
        if self.api_key.is_empty() || culvert_control::token::is_token(&self.api_key) {
            return Ok(());
        }
        Err(Invalid(
            "`bootstrap.api_key` has not the shape of a token; `culvert admin generate-token` prints one".into(),
        ))
    }
}

/// Secrets at rest.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Secrets {
    /// File of the master key (64 hex digits), mode 0600; empty for `master.key` in `data_dir`,
    /// which the first start makes. Every node on one database needs the same key.
    pub key_file: String,
}

/// The audit log.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Audit {
    /// How long audit events are kept, such as `365d`; at least `30d`.
    pub retention: Span,
}

impl Default for Audit {
    fn default() -> Self {
        Self {
            retention: Span(365 * DAY),
        }
    }
}

/// What is captured of traffic.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Events {
    /// Header names whose values are `[redacted]` in traffic events, besides those of credentials;
    /// an empty list redacts nothing, not even those.
    pub redact_headers: Vec<String>,
    /// Query parameters whose values are `[redacted]` in traffic events, in the URL and in headers that hold
    /// URLs, besides those of credentials; an empty list redacts nothing, not even those. Case, `-` and `_`
    /// in names make no difference.
    pub redact_query: Vec<String>,
    /// How long traffic events are kept, each with every field, to be sent to a destination later
    /// (`culvert events replay`), such as `24h`; `0s` keeps none and removes what was kept. The same
    /// on every node.
    pub traffic_retention: Span,
    /// Bytes of kept traffic events, packed as they lie on disk, at most; the oldest go first. At least 1 MiB.
    pub traffic_retention_bytes: u64,
    /// The stream of an `event_log` in NATS, and what its subjects begin with: letters, digits, `-` and
    /// `_`; empty for `culvert_` and a name of the installation. Two installations must not share one.
    pub log_stream: String,
    /// Copies of that stream in a cluster of NATS servers, 1 to 5, when it is made.
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
            traffic_retention: Span(Duration::ZERO),
            traffic_retention_bytes: 1 << 30,
            log_stream: String::new(),
            log_replicas: 1,
        }
    }
}

/// Where events may be sent.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Destinations {
    /// Networks that destinations, certificate authorities and what the edge asks may be at although they
    /// are private, loopback or otherwise special.
    pub allow_networks: Vec<String>,
    /// Whether destinations may be plain `http://`.
    pub allow_plain_http: bool,
    /// The `file` target.
    pub file: FileTarget,
    /// TLS towards destinations.
    pub tls: DestinationTls,
    /// Destinations at Amazon.
    pub aws: AwsDestinations,
    /// Destinations at Datadog.
    pub datadog: DatadogDestinations,
    /// Destinations at Azure.
    pub azure: AzureDestinations,
}

/// Destinations at Amazon.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AwsDestinations {
    /// Replaces the endpoint of every service; else the variable `AWS_ENDPOINT_URL` does.
    pub endpoint_url: String,
    /// Amazon Data Firehose.
    pub firehose: AwsService,
    /// Amazon Kinesis.
    pub kinesis: AwsService,
    /// Amazon CloudWatch Logs.
    pub logs: AwsService,
    /// Amazon S3.
    pub s3: AwsService,
    /// The service that hands out the keys of roles.
    pub sts: AwsService,
}

impl AwsDestinations {
    /// Each service by the name of its host, with its setting.
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

/// One service of Amazon.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AwsService {
    /// Replaces the endpoint of this service; else the variable `AWS_ENDPOINT_URL_` and the
    /// service's name in capitals does.
    pub endpoint_url: String,
}

/// Destinations at Datadog.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DatadogDestinations {
    /// Replaces `https://http-intake.logs.` and the site.
    pub base_url: String,
    /// Sites that `ddsite` may name beside the known ones.
    pub sites: Vec<String>,
}

/// Destinations at Azure.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AzureDestinations {
    /// Replaces `https://login.microsoftonline.com`.
    pub authority_url: String,
}

/// The `file` target.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FileTarget {
    /// Folder below which `file` destinations write; empty for `events` in `data_dir`.
    pub root: String,
}

/// TLS towards destinations.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DestinationTls {
    /// PEM file of further certificate authorities.
    pub extra_ca_file: String,
}

/// Stopping.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Shutdown {
    /// How long requests in flight may take to finish, such as `30s`.
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
    /// `text`, `json`, or `auto`: text on a terminal, else JSON.
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

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    Auto,
    /// For people.
    Text,
    /// For programs, one object per line.
    Json,
}
