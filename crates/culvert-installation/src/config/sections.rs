//! Smaller sections of the settings, each with its keys and defaults.

use std::time::Duration;

use culvert_login::LeakPartner;
use culvert_resources::access::token;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Invalid;
use super::span::Span;

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

impl Role {
    /// Its name in settings.
    pub fn name(self) -> String {
        match self {
            Self::Api => "api",
            Self::Edge => "edge",
            Self::Agents => "agents",
            Self::Delivery => "delivery",
        }
        .to_owned()
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
    pub fn check(&self) -> Result<(), Invalid> {
        if self.api_key.is_empty() || token::body_of_key(&self.api_key).is_some() {
            return Ok(());
        }
        Err(Invalid(
            "`bootstrap.api_key` is not a valid token; create one with `culvert admin generate-token`".into(),
        ))
    }
}

/// Tokens: of API keys, tunnel credentials, console links and invitations.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Keys {
    /// Form of new tokens: `prefixed` with a kind and a checksum that secret scanners verify
    /// (`culvert_key_…`), or `plain` for clients that parse the published form. Tokens of both
    /// forms are always accepted.
    pub token_form: TokenForm,
    /// What happens to a token that is reported as leaked (`POST /leaked_tokens`): `revoke` ends
    /// it, `flag` only tells its owner.
    pub leaked: LeakedTokens,
    /// URL of the public keys of a partner whose signed reports of leaked tokens need no API key,
    /// in the form of GitHub; empty to accept reports only with an API key.
    pub leak_partner_url: String,
}

impl Default for Keys {
    fn default() -> Self {
        Self {
            token_form: TokenForm::default(),
            leaked: LeakedTokens::default(),
            leak_partner_url: "https://api.github.com/meta/public_keys/secret_scanning".to_owned(),
        }
    }
}

impl Keys {
    /// The URL of the partner's keys, if there is a partner. It may be on this host without TLS if private upstreams are
    /// allowed.
    pub fn partner(&self, allows_loopback: bool) -> Result<Option<url::Url>, Invalid> {
        if self.leak_partner_url.is_empty() {
            return Ok(None);
        }
        let url = url::Url::parse(&self.leak_partner_url).ok();
        let url = url.filter(|url| LeakPartner::accepts(url, allows_loopback));
        match url {
            Some(url) => Ok(Some(url)),
            None => Err(Invalid(
                "`keys.leak_partner_url` must be an https URL without a user".into(),
            )),
        }
    }
}

/// The form of new tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TokenForm {
    /// With a kind and a checksum.
    #[default]
    Prefixed,
    /// That of published clients.
    Plain,
}

impl From<TokenForm> for token::Form {
    fn from(form: TokenForm) -> Self {
        match form {
            TokenForm::Prefixed => Self::Prefixed,
            TokenForm::Plain => Self::Plain,
        }
    }
}

/// What happens to a token that is reported as leaked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LeakedTokens {
    /// It stops working.
    #[default]
    Revoke,
    /// Its owner decides.
    Flag,
}

/// Secrets at rest.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Secrets {
    /// File with the master key (64 hex digits), mode 0600. Empty: `master.key` in `data_dir`,
    /// which the first start creates. All nodes on one database must use the same key.
    pub key_file: String,
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
