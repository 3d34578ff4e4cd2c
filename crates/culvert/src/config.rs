//! Settings: one documented struct, filled from flags, environment, file and defaults, in that order.
//!
//! The struct is the only list of keys. Flags, environment names, the check for unknown keys and the
//! reference page are loops over its schema. Nothing else in the project reads the environment.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::reload::LIVE;
use config::{Config, Environment, File, FileFormat};
use culvert_base::Secret;
use culvert_edge::acme::ChallengeKind;
use culvert_edge::login::{LoginSettings, ProviderSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Everything an operator can set.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Folder of the state: database, event queue, keys. Created with mode 0700.
    pub data_dir: PathBuf,
    /// `postgres://…` to keep the state in PostgreSQL; empty for SQLite in `data_dir`.
    pub database_url: String,
    /// Parts this process runs: any of `api`, `edge`, `agents`, `delivery`. Agents are reached through
    /// the edge of the process that they are connected to.
    pub roles: Vec<Role>,
    /// Name of the region of this node, as agents and events see it.
    pub region: String,
    /// Name of this node in logs, metrics and queue leases; empty for the host name.
    pub node_name: String,
    /// The management API.
    pub api: Api,
    /// The reverse proxy.
    pub edge: EdgeSettings,
    /// The ingress of agents.
    pub agents: Agents,
    /// Managed certificates.
    pub acme: Acme,
    /// Traffic Policy.
    pub policy: Policy,
    /// Log-ins of traffic policies.
    pub oauth: Oauth,
    /// Prometheus metrics.
    pub metrics: Metrics,
    /// What the first start makes.
    pub bootstrap: Bootstrap,
    /// Secrets at rest.
    pub secrets: Secrets,
    /// The audit log.
    pub audit: Audit,
    /// What is captured of traffic.
    pub events: Events,
    /// Where events may be sent.
    pub destinations: Destinations,
    /// Stopping.
    pub shutdown: Shutdown,
    /// Logging.
    pub log: Log,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("./culvert-data"),
            database_url: String::new(),
            roles: vec![Role::Api, Role::Edge, Role::Agents, Role::Delivery],
            region: String::new(),
            node_name: String::new(),
            api: Api::default(),
            edge: EdgeSettings::default(),
            agents: Agents::default(),
            acme: Acme::default(),
            metrics: Metrics::default(),
            policy: Policy::default(),
            oauth: Oauth::default(),
            bootstrap: Bootstrap::default(),
            secrets: Secrets::default(),
            audit: Audit::default(),
            events: Events::default(),
            destinations: Destinations::default(),
            shutdown: Shutdown::default(),
            log: Log::default(),
        }
    }
}

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
    /// Public base of `uri` fields, such as `https://culvert.example.com`; empty: from the request.
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
    /// Pool of public ports for TCP endpoints, first and last.
    pub tcp_ports: String,
    /// Whether endpoints may forward to loopback and private addresses.
    pub allow_private_upstreams: bool,
    /// Networks whose forwarding headers are kept and appended to.
    pub trusted_proxies: Vec<String>,
    /// Listeners whose connections begin with a header of the PROXY protocol, version 1 or 2, when
    /// they come from `edge.proxy_protocol_from`: any of `http`, `https`, `tcp`.
    pub proxy_protocol: Vec<ProxiedListener>,
    /// Networks of the load balancers that send that header. Nobody else's is believed.
    pub proxy_protocol_from: Vec<String>,
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
}

impl Default for EdgeSettings {
    fn default() -> Self {
        Self {
            http_addr: "0.0.0.0:8080".into(),
            https_addr: "0.0.0.0:8443".into(),
            domain: "culvert.localhost".into(),
            tcp_ports: "20000-20999".into(),
            allow_private_upstreams: true,
            trusted_proxies: Vec::new(),
            proxy_protocol: Vec::new(),
            proxy_protocol_from: Vec::new(),
            memory_bytes: 512 << 20,
            body_bytes_max: 0,
            connections_max: 16_384,
            connections_per_source_max: 1_024,
            extra_ca_file: String::new(),
            certificates: Vec::new(),
        }
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
}

impl Default for Agents {
    fn default() -> Self {
        Self {
            addr: "0.0.0.0:8441".into(),
            ssh_addr: "0.0.0.0:2222".into(),
            cert_file: String::new(),
            key_file: String::new(),
            names: Vec::new(),
        }
    }
}

impl Agents {
    fn check(&self) -> Result<(), Invalid> {
        if self.cert_file.is_empty() && !self.key_file.is_empty() {
            return Err(Invalid(
                "`agents.key_file` needs `agents.cert_file` beside it".into(),
            ));
        }
        for name in &self.names {
            let is_address = name.parse::<std::net::IpAddr>().is_ok();
            if !is_address && culvert_base::net::HostName::parse(name).is_err() {
                return Err(Invalid(format!(
                    "`agents.names` has `{name}`, which is neither a host name nor an address"
                )));
            }
        }
        Ok(())
    }
}

/// Managed certificates.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Acme {
    /// Directory of the authority (RFC 8555) that managed certificates come from, such as
    /// `https://acme-v02.api.letsencrypt.org/directory`. Naming one agrees to its terms of service.
    /// Empty: managed domains show that there is none.
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

    fn check(&self) -> Result<(), Invalid> {
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
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            on_expression_error: OnExpressionError::Skip,
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

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// A shorter retention would make a log that is no audit log.
const AUDIT_RETENTION_MIN: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// What is captured of traffic.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Events {
    /// Header names whose values are `[redacted]` in traffic events, besides those of credentials;
    /// an empty list redacts nothing, not even those.
    pub redact_headers: Vec<String>,
}

impl Default for Events {
    fn default() -> Self {
        let names = [
            "authorization",
            "proxy-authorization",
            "cookie",
            "set-cookie",
            "x-api-key",
        ];
        Self {
            redact_headers: names.map(String::from).to_vec(),
        }
    }
}

/// Where events may be sent.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Destinations {
    /// Networks that destinations may reach although they are private, loopback or otherwise special.
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

/// A duration as operators write it: `250ms`, `30s`, `5m`, `12h`, `365d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct Span(pub Duration);

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is not a duration such as `250ms`, `30s`, `5m`, `12h` or `365d`");
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        Ok(Self(Duration::from_millis(
            number.checked_mul(unit_ms).ok_or_else(wrong)?,
        )))
    }
}

impl From<Span> for String {
    fn from(span: Span) -> Self {
        let ms = span.0.as_millis();
        let day = DAY.as_millis();
        if ms >= day && ms.is_multiple_of(day) {
            format!("{}d", ms / day)
        } else if ms.is_multiple_of(1000) {
            format!("{}s", ms / 1000)
        } else {
            format!("{ms}ms")
        }
    }
}

/// Why the settings cannot be used; one sentence for standard error, exit code 78.
#[derive(Debug)]
pub struct Invalid(pub String);

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Invalid {}

/// One key, as found in the schema of [`Settings`].
#[derive(Clone, Debug)]
pub struct Key {
    /// Dotted: `edge.http_addr`.
    pub name: String,
    /// From the doc comment.
    pub doc: String,
    /// The default, as JSON.
    pub default: Value,
    /// Whether it takes a list.
    pub list: bool,
}

impl Key {
    /// `CULVERT_EDGE__HTTP_ADDR`.
    pub fn variable(&self) -> String {
        format!("CULVERT_{}", self.name.to_uppercase().replace('.', "__"))
    }

    /// `edge-http-addr`.
    pub fn flag(&self) -> String {
        self.name.replace(['.', '_'], "-")
    }
}

/// Every key, sorted by name within its section.
pub fn keys() -> Vec<Key> {
    let schema =
        serde_json::to_value(schemars::schema_for!(Settings)).expect("a schema is always JSON");
    let defaults = serde_json::to_value(Settings::default()).expect("settings are always JSON");
    let mut keys = Vec::new();
    collect_keys(&schema, &schema, &defaults, "", &mut keys);
    keys
}

fn collect_keys(root: &Value, schema: &Value, defaults: &Value, path: &str, keys: &mut Vec<Key>) {
    let resolve = |schema: &'_ Value| -> Value {
        match schema["$ref"].as_str().and_then(|r| r.strip_prefix('#')) {
            Some(pointer) => root.pointer(pointer).cloned().unwrap_or_default(),
            None => schema.clone(),
        }
    };
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    let Some(defaults) = defaults.as_object() else {
        return;
    };
    for (name, default) in defaults {
        let Some(property) = properties.get(name) else {
            continue;
        };
        let target = resolve(property);
        let name = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        if target["properties"].is_object() {
            collect_keys(root, &target, default, &name, keys);
        } else {
            let doc = property["description"]
                .as_str()
                .or(target["description"].as_str());
            let doc = doc.unwrap_or_default().replace('\n', " ");
            keys.push(Key {
                name,
                doc,
                default: default.clone(),
                list: default.is_array(),
            });
        }
    }
}

/// Variables that start with `CULVERT_` and are not settings of the server: those of the client and of
/// the agent, and the test suite's.
const OTHER_VARIABLES: [&str; 6] = [
    "CULVERT_API_URL",
    "CULVERT_API_KEY",
    "CULVERT_AUTHTOKEN",
    "CULVERT_CA_FILE",
    "CULVERT_SERVER",
    "CULVERT_TEST_",
];

/// The process environment. The only place that reads it.
pub fn environment() -> HashMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Reads settings: `flags` (dotted key to text) win over `environment`, that over the file, that over
/// the defaults. `file` is required if given, else `./culvert.toml` or `/etc/culvert/culvert.toml` if
/// there is one.
pub fn load(
    file: Option<&Path>,
    environment: &HashMap<String, String>,
    flags: &[(String, String)],
) -> Result<Settings, Invalid> {
    let keys = keys();
    let mut builder = Config::builder();
    let found = match file {
        Some(path) => Some(path.to_owned()),
        None => ["./culvert.toml", "/etc/culvert/culvert.toml"]
            .into_iter()
            .map(PathBuf::from)
            .find(|path| path.is_file()),
    };
    if let Some(path) = &found {
        if !path.is_file() {
            return Err(Invalid(format!(
                "the configuration file `{}` cannot be read",
                path.display()
            )));
        }
        builder = builder.add_source(File::from(path.as_path()).format(FileFormat::Toml));
    }
    let ours: HashMap<String, String> = environment
        .iter()
        .filter(|(name, _)| name.starts_with("CULVERT_"))
        .filter(|(name, _)| !OTHER_VARIABLES.iter().any(|other| name.starts_with(other)))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let mut variables = Environment::with_prefix("CULVERT")
        .prefix_separator("_")
        .separator("__")
        .try_parsing(true)
        .list_separator(",")
        .source(Some(ours));
    for key in keys.iter().filter(|key| key.list) {
        variables = variables.with_list_parse_key(&key.name);
    }
    builder = builder.add_source(variables);
    for (name, value) in flags {
        let list = keys.iter().any(|key| key.name == *name && key.list);
        let set = if list {
            let items: Vec<&str> = value.split(',').filter(|item| !item.is_empty()).collect();
            builder.set_override(name, items)
        } else {
            builder.set_override(name, value.as_str())
        };
        builder = set.map_err(|e| Invalid(format!("the setting `{name}` cannot be set: {e}")))?;
    }
    let config = builder
        .build()
        .map_err(|e| Invalid(format!("the configuration cannot be read: {e}")))?;

    let given: BTreeMap<String, Value> = config
        .clone()
        .try_deserialize()
        .map_err(|e| Invalid(format!("the configuration cannot be read: {e}")))?;
    refuse_unknown(&given, &keys)?;
    let mut settings: Settings = config
        .try_deserialize()
        .map_err(|e| Invalid(format!("the configuration is not valid: {e}")))?;
    // A list given as an empty variable is one empty text.
    for list in [
        &mut settings.api.trusted_proxies,
        &mut settings.edge.trusted_proxies,
        &mut settings.edge.proxy_protocol_from,
        &mut settings.agents.names,
        &mut settings.acme.challenges,
        &mut settings.events.redact_headers,
        &mut settings.destinations.allow_networks,
        &mut settings.destinations.datadog.sites,
    ] {
        list.retain(|item| !item.trim().is_empty());
    }
    settings.check()?;
    Ok(settings)
}

fn refuse_unknown(given: &BTreeMap<String, Value>, keys: &[Key]) -> Result<(), Invalid> {
    let mut flat = Vec::new();
    for (name, value) in given {
        flatten(name.clone(), value, keys, &mut flat);
    }
    for name in flat {
        if !keys.iter().any(|key| key.name == name) {
            let nearest = keys.iter().min_by_key(|key| distance(&key.name, &name));
            let nearest = nearest.map(|key| key.name.as_str()).unwrap_or_default();
            return Err(Invalid(format!(
                "unknown setting `{name}`; did you mean `{nearest}`?"
            )));
        }
    }
    Ok(())
}

fn flatten(name: String, value: &Value, keys: &[Key], flat: &mut Vec<String>) {
    match value.as_object() {
        Some(inner) if !keys.iter().any(|key| key.name == name) => {
            for (child, value) in inner {
                flatten(format!("{name}.{child}"), value, keys, flat);
            }
        }
        _ => flat.push(name),
    }
}

/// Edit distance (insert, delete, replace) between two short names.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

impl Settings {
    /// What cannot be said in types.
    fn check(&self) -> Result<(), Invalid> {
        self.bootstrap.check()?;
        self.acme.check()?;
        self.agents.check()?;
        self.oauth.logins()?;
        for (key, text) in [
            ("api.addr", &self.api.addr),
            ("edge.http_addr", &self.edge.http_addr),
            ("edge.https_addr", &self.edge.https_addr),
            ("agents.addr", &self.agents.addr),
            ("agents.ssh_addr", &self.agents.ssh_addr),
            ("metrics.addr", &self.metrics.addr),
        ] {
            if !(text.is_empty() && key != "api.addr") && text.parse::<SocketAddr>().is_err() {
                let text = format!(
                    "`{key}` must be an address and port such as `127.0.0.1:8420`, not `{text}`"
                );
                return Err(Invalid(text));
            }
        }
        if self.roles.is_empty() {
            return Err(Invalid(
                "`roles` must name at least one of `api`, `edge`, `agents`, `delivery`".into(),
            ));
        }
        if self.audit.retention.0 < AUDIT_RETENTION_MIN {
            return Err(Invalid("`audit.retention` must be at least `30d`".into()));
        }
        culvert_base::net::HostName::parse(&self.edge.domain)
            .map_err(|e| Invalid(format!("`edge.domain` is not a host name: {e}")))?;
        self.tcp_ports()?;
        if self.edge.proxy_protocol.is_empty() != self.edge.proxy_protocol_from.is_empty() {
            return Err(Invalid(
                "`edge.proxy_protocol` and `edge.proxy_protocol_from` go together: which listeners, \
                 and from which networks"
                    .into(),
            ));
        }
        if !self.database_url.is_empty()
            && !self.database_url.starts_with("postgres://")
            && !self.database_url.starts_with("postgresql://")
        {
            return Err(Invalid(
                "`database_url` must start with `postgres://`, or be empty for SQLite".into(),
            ));
        }
        if !self.api.base_url.is_empty() && url::Url::parse(&self.api.base_url).is_err() {
            return Err(Invalid(
                "`api.base_url` must be a URL such as `https://culvert.example.com`".into(),
            ));
        }
        Ok(())
    }

    /// First and last port of the TCP pool.
    pub fn tcp_ports(&self) -> Result<(u16, u16), Invalid> {
        let wrong = || {
            Invalid(format!(
                "`edge.tcp_ports` must be a range such as `20000-20999`, not `{}`",
                self.edge.tcp_ports
            ))
        };
        let (first, last) = self.edge.tcp_ports.split_once('-').ok_or_else(wrong)?;
        let first: u16 = first.trim().parse().map_err(|_| wrong())?;
        let last: u16 = last.trim().parse().map_err(|_| wrong())?;
        if first == 0 || first > last {
            Err(wrong())
        } else {
            Ok((first, last))
        }
    }

    /// Where the master key is kept.
    pub fn key_file(&self) -> PathBuf {
        if self.secrets.key_file.is_empty() {
            self.data_dir.join("master.key")
        } else {
            PathBuf::from(&self.secrets.key_file)
        }
    }

    /// The folder of `file` destinations.
    pub fn file_root(&self) -> PathBuf {
        if self.destinations.file.root.is_empty() {
            self.data_dir.join("events")
        } else {
            PathBuf::from(&self.destinations.file.root)
        }
    }

    /// This node's name.
    pub fn node(&self) -> String {
        if !self.node_name.is_empty() {
            return self.node_name.clone();
        }
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = name.trim();
        if name.is_empty() {
            "culvert".into()
        } else {
            name.to_owned()
        }
    }

    /// The settings as JSON for people: secrets hidden.
    pub fn shown(&self) -> Value {
        let mut shown = self.clone();
        if !shown.bootstrap.api_key.is_empty() {
            shown.bootstrap.api_key = "[secret]".into();
        }
        let providers = &mut shown.oauth.providers;
        for provider in [
            &mut providers.amazon,
            &mut providers.facebook,
            &mut providers.github,
            &mut providers.gitlab,
            &mut providers.google,
            &mut providers.linkedin,
            &mut providers.microsoft,
            &mut providers.twitch,
        ] {
            if !provider.client_secret.is_empty() {
                provider.client_secret = "[secret]".into();
            }
        }
        if let Ok(mut url) = url::Url::parse(&shown.database_url)
            && url.password().is_some()
            && url.set_password(Some("secret")).is_ok()
        {
            shown.database_url = url.into();
        }
        serde_json::to_value(shown).expect("settings are always JSON")
    }
}

/// The reference page of all keys, in Markdown.
pub fn reference() -> String {
    let mut page = String::from(
        "# Settings\n\nOrder: flag, environment, `culvert.toml` (`--config`, else `./culvert.toml`, else\n\
         `/etc/culvert/culvert.toml`), default. Lists are comma-separated in flags and variables.\n\n\
         SIGHUP reads settings and the files they name again: keys marked *live* are taken into use, the\n\
         log names the others that differ; they wait for the next start. Settings that are not valid\n\
         change nothing.\n\n\
         | Key | Default | Variable, flag | Meaning |\n|---|---|---|---|\n",
    );
    for key in keys() {
        let default = match &key.default {
            Value::String(text) if text.is_empty() => "empty".to_owned(),
            Value::String(text) => format!("`{text}`"),
            Value::Array(items) if items.is_empty() => "none".to_owned(),
            Value::Array(items) => {
                let items: Vec<_> = items.iter().filter_map(Value::as_str).collect();
                format!("`{}`", items.join(","))
            }
            other => format!("`{other}`"),
        };
        let (name, variable, flag, doc) = (&key.name, key.variable(), key.flag(), &key.doc);
        let live = match LIVE.contains(&name.as_str()) {
            true => " *Live.*",
            false => "",
        };
        page.push_str(&format!(
            "| `{name}` | {default} | `{variable}`, `--{flag}` | {doc}{live} |\n"
        ));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load_with(variables: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Settings, Invalid> {
        let variables = variables
            .iter()
            .map(|(n, v)| (n.to_string(), v.to_string()))
            .collect();
        let flags: Vec<_> = flags
            .iter()
            .map(|(n, v)| (n.to_string(), v.to_string()))
            .collect();
        load(None, &variables, &flags)
    }

    #[test]
    fn a_flag_wins_over_the_environment_and_that_over_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("culvert.toml");
        std::fs::write(
            &path,
            "[api]\naddr = \"127.0.0.1:1\"\n[edge]\ndomain = \"a.example\"\n",
        )
        .unwrap();
        let variables = HashMap::from([("CULVERT_API__ADDR".to_owned(), "127.0.0.1:2".to_owned())]);
        let settings = load(Some(&path), &variables, &[]).unwrap();
        assert_eq!(
            (settings.api.addr.as_str(), settings.edge.domain.as_str()),
            ("127.0.0.1:2", "a.example")
        );
        let flags = [("api.addr".to_owned(), "127.0.0.1:3".to_owned())];
        assert_eq!(
            load(Some(&path), &variables, &flags).unwrap().api.addr,
            "127.0.0.1:3"
        );
    }

    #[test]
    fn lists_numbers_and_durations_come_from_text() {
        let settings = load_with(
            &[
                ("CULVERT_ROLES", "api,edge"),
                ("CULVERT_EDGE__CONNECTIONS_MAX", "7"),
            ],
            &[
                ("shutdown.drain", "250ms"),
                ("audit.retention", "90d"),
                ("events.redact_headers", ""),
            ],
        )
        .unwrap();
        assert_eq!(settings.roles, [Role::Api, Role::Edge]);
        assert_eq!(settings.edge.connections_max, 7);
        assert_eq!(settings.shutdown.drain.0, Duration::from_millis(250));
        assert_eq!(String::from(settings.audit.retention), "90d");
        assert!(settings.events.redact_headers.is_empty());
    }

    #[test]
    fn an_unknown_key_names_the_nearest() {
        let error = load_with(&[("CULVERT_EDGE__HTP_ADDR", "x")], &[])
            .unwrap_err()
            .0;
        assert_eq!(
            error,
            "unknown setting `edge.htp_addr`; did you mean `edge.http_addr`?"
        );
    }

    #[test]
    fn wrong_values_are_named() {
        for (key, value) in [
            ("api.addr", "nowhere"),
            ("edge.tcp_ports", "9-1"),
            ("edge.domain", "a..b"),
            ("roles", ""),
            ("database_url", "mysql://x"),
            ("shutdown.drain", "soon"),
            ("audit.retention", "29d"),
            ("acme.directory_url", "http://ca.example/dir"),
            ("acme.contact", "nobody"),
            ("acme.challenges", "http-01,dns-01"),
            ("acme.dns_hook_timeout", "4m"),
            ("oauth.callback_base", "login.example.com"),
            ("oauth.callback_base", "https://login.example.com/?a"),
            ("oauth.providers.google.token_url", "ftp://x"),
            ("oauth.providers.google.client_id", "alone"),
        ] {
            assert!(load_with(&[], &[(key, value)]).is_err(), "{key}");
        }
    }

    #[test]
    fn secrets_are_hidden() {
        let token =
            culvert_control::token::generate(&culvert_base::SystemClock, &culvert_base::OsEntropy);
        let settings = load_with(
            &[
                ("CULVERT_BOOTSTRAP__API_KEY", token.reveal()),
                ("CULVERT_DATABASE_URL", "postgres://u:canary@h/d"),
                ("CULVERT_OAUTH__PROVIDERS__GITHUB__CLIENT_ID", "me"),
                ("CULVERT_OAUTH__PROVIDERS__GITHUB__CLIENT_SECRET", "canary"),
            ],
            &[],
        )
        .unwrap();
        let shown = settings.shown().to_string();
        assert!(!shown.contains("canary") && !shown.contains(token.reveal()));
    }

    #[test]
    fn every_key_is_documented() {
        for key in keys() {
            assert!(!key.doc.is_empty(), "{}", key.name);
        }
    }
}
