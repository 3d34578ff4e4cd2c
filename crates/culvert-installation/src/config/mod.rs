//! Settings: one documented struct, whose values come from flags, environment, file and defaults, in this order of
//! precedence.
//!
//! The struct is the only list of keys. Flags, environment variables, the check for unknown keys and the reference
//! page are generated from its schema.

mod acme;
mod acme_dns;
mod agents;
mod api;
mod console;
mod edge;
mod events;
mod keys;
mod kubernetes;
mod limits;
mod load;
mod networks;
mod policy;
mod sections;
mod span;
mod statistics;
#[cfg(test)]
mod tests;
mod traces;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use culvert_target::NatsServers;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use culvert_command::{Invalid, environment};

pub use acme::*;
pub use acme_dns::*;
pub use agents::*;
pub use api::*;
pub use console::{Console, OpenId};
pub use edge::*;
pub use events::*;
pub use keys::{Key, LIVE, keys, reference};
pub use kubernetes::Kubernetes;
pub use limits::Limits;
pub use load::{file_used, load, load_for_storage, parse};
pub use networks::networks;
pub use policy::*;
pub use sections::*;
pub use span::Span;
pub use statistics::Statistics;
pub use traces::{TraceHeaders, TraceSample, Tracing};

/// The minimum size, which must hold the data of one write.
const TRAFFIC_RETENTION_BYTES_MIN: u64 = 1 << 20;
/// How often alert rules may be evaluated.
const ALERT_INTERVALS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(300);
/// The minimum retention. A shorter one would defeat the purpose of an audit log.
const AUDIT_RETENTION_MIN: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The value of `event_log` for a queue in the database.
const EMBEDDED: &str = "embedded";

/// Everything an operator can set.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Data directory: database, event queue, keys. Created with mode 0700.
    pub data_dir: PathBuf,
    /// `postgres://…` to store the state in PostgreSQL; empty for SQLite in `data_dir`.
    pub database_url: String,
    /// Queue for traffic events that a destination does not accept immediately: `embedded` in the
    /// database, or `nats://host:4222` for NATS JetStream, shared by all nodes. Separate the
    /// servers of a cluster with commas; use `tls://` for TLS and `user:password@` or `token@`
    /// before one host for credentials.
    pub event_log: String,
    /// Roles of this process: any of `api`, `edge`, `agents`, `delivery`. With `database_url`,
    /// the edge of every node reaches all agents; without it, an edge reaches only agents
    /// connected to its own process.
    pub roles: Vec<Role>,
    /// Region name of this node in agents and events.
    pub region: String,
    /// Name of this node in logs, metrics and queue leases; empty for the host name. If a running
    /// node on the same `database_url` already has the name, a number is appended.
    pub node_name: String,
    /// The management API.
    pub api: Api,
    /// The reverse proxy.
    pub edge: EdgeSettings,
    /// The agent ingress.
    pub agents: Agents,
    /// Bindings of Kubernetes operators.
    pub kubernetes: Kubernetes,
    /// Limits for agents.
    pub limits: Limits,
    /// Connections between the nodes of the installation.
    pub nodes: Nodes,
    /// Managed certificates.
    pub acme: Acme,
    /// Traffic Policy.
    pub policy: Policy,
    /// Rights to the objects of other owners.
    pub rights: RightsSettings,
    /// Sign-ins of traffic policies.
    pub oauth: Oauth,
    /// The web console.
    pub console: Console,
    /// Prometheus metrics.
    pub metrics: Metrics,
    /// Statistics for the console and the API.
    pub statistics: Statistics,
    /// Objects that the first start creates.
    pub bootstrap: Bootstrap,
    /// Tokens: of API keys, tunnel credentials, console links and invitations.
    pub keys: Keys,
    /// Secrets at rest.
    pub secrets: Secrets,
    /// The audit log.
    pub audit: Audit,
    /// Alert rules.
    pub alerts: Alerts,
    /// Capture and retention of traffic events.
    pub events: Events,
    /// Event destinations.
    pub destinations: Destinations,
    /// Shutdown.
    pub shutdown: Shutdown,
    /// Traces of requests.
    pub tracing: Tracing,
    /// Logging.
    pub log: Log,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("./culvert-data"),
            database_url: String::new(),
            event_log: EMBEDDED.to_owned(),
            roles: vec![Role::Api, Role::Edge, Role::Agents, Role::Delivery],
            region: String::new(),
            node_name: String::new(),
            api: Api::default(),
            edge: EdgeSettings::default(),
            agents: Agents::default(),
            kubernetes: Kubernetes::default(),
            limits: Limits::default(),
            nodes: Nodes::default(),
            acme: Acme::default(),
            metrics: Metrics::default(),
            statistics: Statistics::default(),
            policy: Policy::default(),
            rights: RightsSettings::default(),
            oauth: Oauth::default(),
            console: Console::default(),
            bootstrap: Bootstrap::default(),
            keys: Keys::default(),
            secrets: Secrets::default(),
            audit: Audit::default(),
            alerts: Alerts::default(),
            events: Events::default(),
            destinations: Destinations::default(),
            shutdown: Shutdown::default(),
            tracing: Tracing::default(),
            log: Log::default(),
        }
    }
}

impl Settings {
    /// Checks constraints that types do not express.
    fn check(&self) -> Result<(), Invalid> {
        self.acme.check()?;
        self.check_storage()
    }

    /// As [`Self::check`], without what concerns a CA and a DNS provider.
    fn check_storage(&self) -> Result<(), Invalid> {
        self.bootstrap.check()?;
        self.keys.partner(self.edge.allow_private_upstreams)?;
        self.acme.own_names(&self.edge.domain)?;
        self.api.check()?;
        self.agents.check()?;
        self.kubernetes.check()?;
        self.edge.check()?;
        self.check_folders()?;
        self.limits.check()?;
        self.nodes.check()?;
        self.oauth.logins()?;
        self.console.openid.provider(false)?;
        self.nats()?;
        self.events.check()?;
        self.statistics.check()?;
        self.tracing.check()?;
        for (key, text) in [
            ("api.addr", &self.api.addr),
            ("edge.http_addr", &self.edge.http_addr),
            ("edge.https_addr", &self.edge.https_addr),
            ("agents.addr", &self.agents.addr),
            ("agents.ssh_addr", &self.agents.ssh_addr),
            ("kubernetes.addr", &self.kubernetes.addr),
            ("nodes.addr", &self.nodes.addr),
            ("metrics.addr", &self.metrics.addr),
            ("api.tls.addr", &self.api.tls.addr),
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
        if self.events.traffic_retention_bytes < TRAFFIC_RETENTION_BYTES_MIN {
            return Err(Invalid(
                "`events.traffic_retention_bytes` must be at least 1048576".into(),
            ));
        }
        if !ALERT_INTERVALS.contains(&self.alerts.interval.0) {
            let why = "`alerts.interval` must be from `1s` to `5m`";
            return Err(Invalid(why.into()));
        }
        if self.audit.retention.0 < AUDIT_RETENTION_MIN {
            return Err(Invalid("`audit.retention` must be at least `30d`".into()));
        }
        self.audit.descriptor()?;
        if self.audit.quorum() > self.audit.witnesses.len() {
            let why = "`audit.quorum` is more than there are `audit.witnesses`";
            return Err(Invalid(why.into()));
        }
        culvert_base::net::HostName::parse(&self.edge.domain)
            .map_err(|e| Invalid(format!("`edge.domain` is not a valid host name: {e}")))?;
        self.tcp_ports()?;
        if self.edge.proxy_protocol.is_empty() != self.edge.proxy_protocol_from.is_empty() {
            return Err(Invalid(
                "`edge.proxy_protocol` (listeners) and `edge.proxy_protocol_from` (networks) \
                 must be set together"
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

    /// The servers of the event log, if it is in NATS.
    pub fn nats(&self) -> Result<Option<NatsServers>, Invalid> {
        if self.event_log == EMBEDDED {
            return Ok(None);
        }
        let servers = NatsServers::parse(&self.event_log);
        servers.map(Some).map_err(|why| {
            Invalid(format!(
                "`event_log` must be `embedded` or a URL such as `nats://127.0.0.1:4222`: {why}"
            ))
        })
    }

    /// First and last port of the pool of TCP addresses.
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

    /// Base of `uri` fields in events, without a trailing slash. Without a setting, it is the address of the API.
    pub fn base_url(&self) -> String {
        match self.api.base_url.trim_end_matches('/') {
            "" => format!("http://{}", self.api.addr),
            base_url => base_url.to_owned(),
        }
    }

    /// Refuses to serve the files of the server itself, among them its keys.
    fn check_folders(&self) -> Result<(), Invalid> {
        let allowed = self.edge.allowed_folders()?;
        let mut own = vec![self.data_dir.clone(), self.key_file()];
        if let KeyPlace::File(path) = self.audit_key_place() {
            own.push(path);
        }
        for path in own {
            if let Some(folder) = allowed.overlapping(&path) {
                return Err(Invalid(format!(
                    "`edge.allow_file_upstreams`: `{}` has `{}`, which is of the server itself; allow a directory apart",
                    folder.display(),
                    path.display()
                )));
            }
        }
        Ok(())
    }

    /// Path of the master key.
    pub fn key_file(&self) -> PathBuf {
        if self.secrets.key_file.is_empty() {
            self.data_dir.join("master.key")
        } else {
            PathBuf::from(&self.secrets.key_file)
        }
    }

    /// Where the key is that signs the heads of the audit log.
    pub fn audit_key_place(&self) -> KeyPlace {
        match (self.audit.descriptor(), self.audit.key_file.as_str()) {
            (Ok(Some(number)), _) => KeyPlace::Descriptor(number),
            (_, "") => KeyPlace::File(self.data_dir.join("audit.key")),
            (_, path) => KeyPlace::File(PathBuf::from(path)),
        }
    }

    /// Path of the last signed head of the audit log.
    pub fn audit_head_file(&self) -> PathBuf {
        self.data_dir.join("audit.head")
    }

    /// The directory of `file` destinations.
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

    /// The settings as JSON for display, with secrets hidden.
    pub fn shown(&self) -> Value {
        let mut shown = self.clone();
        if !shown.bootstrap.api_key.is_empty() {
            shown.bootstrap.api_key = "[secret]".into();
        }
        if !shown.console.openid.client_secret.is_empty() {
            shown.console.openid.client_secret = "[secret]".into();
        }
        if !shown.tracing.headers.is_empty() {
            shown.tracing.headers = "[secret]".into();
        }
        for secret in shown.acme.secrets() {
            if !secret.is_empty() {
                *secret = "[secret]".into();
            }
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
        if let Ok(Some(servers)) = self.nats() {
            shown.event_log = servers.shown();
        }
        serde_json::to_value(shown).expect("settings are always JSON")
    }
}
