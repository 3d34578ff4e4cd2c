//! A Bind: an agent asks for an endpoint and says how its traffic should be treated.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::parse;

/// The call.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct BindRequest {
    /// Empty to let the server choose; else the one chosen before, which is to be kept.
    #[serde(rename(serialize = "Id", deserialize = "id"))]
    pub id: String,
    /// `http`, `https`, `tcp` or `tls`.
    #[serde(rename(serialize = "Proto", deserialize = "proto"))]
    pub proto: String,
    /// Shown to people.
    #[serde(rename(serialize = "ForwardsTo", deserialize = "forwardsto"))]
    pub forwards_to: String,
    /// What the service speaks: empty, `http1` or `http2`.
    #[serde(rename(serialize = "ForwardsProto", deserialize = "forwardsproto"))]
    pub forwards_proto: String,
    /// How traffic is treated, as sent. [`BindRequest::options`] reads it; the reply returns it.
    #[serde(rename(serialize = "Opts", deserialize = "opts"))]
    pub opts: Value,
    /// Everything else.
    #[serde(rename(serialize = "Extra", deserialize = "extra"))]
    pub extra: BindExtra,
}

impl BindRequest {
    /// Reads a request and keeps the options as they were spelled, because agents take them back
    /// from the reply and send them again when they return.
    pub fn read(object: Value) -> Result<Self, serde_json::Error> {
        let opts = object
            .as_object()
            .and_then(|fields| {
                fields
                    .iter()
                    .find(|(name, _)| name.eq_ignore_ascii_case("opts"))
            })
            .map(|(_, opts)| opts.clone())
            .filter(|opts| !opts.is_null());
        let mut request: Self = parse(object)?;
        request.opts = opts.unwrap_or_else(|| Value::Object(serde_json::Map::new()));
        Ok(request)
    }

    /// The options by name.
    pub fn options(&self) -> Result<Options, serde_json::Error> {
        parse(self.opts.clone())
    }

    /// The options for the reply: as sent, with the name that was assigned in the field that the
    /// agent would have used for it.
    ///
    /// `name` is `host`, or `host:port` for tcp; `url` the whole URL.
    pub fn options_with(&self, name: &str, url: &str) -> Value {
        let mut opts = self.opts.clone();
        if let Value::Object(fields) = &mut opts {
            let target = ["URL", "Domain", "Hostname", "Addr"]
                .into_iter()
                .find(|target| fields.contains_key(*target))
                .unwrap_or(if self.proto == "tcp" {
                    "Addr"
                } else {
                    "Hostname"
                });
            let value = if target == "URL" { url } else { name };
            fields.insert(target.into(), value.into());
        }
        opts
    }
}

/// The rest of a Bind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct BindExtra {
    /// What the last reply gave: the proof that a name may be had again.
    #[serde(rename(serialize = "Token", deserialize = "token"))]
    pub token: String,
    /// Empty from libraries.
    #[serde(rename(serialize = "IPPolicyRef", deserialize = "ippolicyref"))]
    pub ip_policy_ref: String,
    /// Text of the application.
    #[serde(rename(serialize = "Metadata", deserialize = "metadata"))]
    pub metadata: String,
    /// `public`, `internal` or `kubernetes`.
    #[serde(rename(serialize = "Bindings", deserialize = "bindings"))]
    pub bindings: Vec<String>,
    /// Whether others may share the URL.
    #[serde(rename(serialize = "PoolingEnabled", deserialize = "poolingenabled"))]
    pub pooling_enabled: bool,
    /// Its name.
    #[serde(rename(serialize = "Name", deserialize = "name"))]
    pub name: String,
    /// What it is for.
    #[serde(rename(serialize = "Description", deserialize = "description"))]
    pub description: String,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct BindReply {
    /// Names the endpoint in headers and commands.
    #[serde(rename(serialize = "Id", deserialize = "id"))]
    pub id: String,
    /// Where the endpoint is reached.
    #[serde(rename(serialize = "URL", deserialize = "url"))]
    pub url: String,
    /// As asked for.
    #[serde(rename(serialize = "Proto", deserialize = "proto"))]
    pub proto: String,
    /// Replaces the agent's own options, so it must hold all of them.
    #[serde(rename(serialize = "Opts", deserialize = "opts"))]
    pub opts: Value,
    /// Empty for success.
    #[serde(rename(serialize = "Error", deserialize = "error"))]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Everything else.
    #[serde(rename(serialize = "Extra", deserialize = "extra"))]
    pub extra: BindReplyExtra,
}

/// The rest of the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct BindReplyExtra {
    /// The agent returns it when it comes back.
    #[serde(rename(serialize = "Token", deserialize = "token"))]
    pub token: String,
    /// Names the endpoint in [`super::PatchRequest`].
    #[serde(rename(serialize = "TunnelID", deserialize = "tunnelid"))]
    pub tunnel_id: String,
}

/// How the traffic of an endpoint is treated. One type for all protocols: what a protocol does not
/// have is absent. Inside, absence means empty.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Options {
    /// The URL as the user of a Go agent gave it.
    pub url: String,
    /// The host wanted, from newer Rust-based agents.
    pub domain: String,
    /// The same from older ones.
    pub hostname: String,
    /// A label under the base domain.
    pub subdomain: String,
    /// `host:port` of a tcp endpoint.
    pub addr: String,
    /// `user:password`, from very old agents.
    pub auth: String,
    /// PROXY protocol towards the agent: 0 none, 1, 2.
    #[serde(rename = "proxyproto")]
    pub proxy_proto: i64,
    /// Compress responses.
    pub compression: Option<Enabled>,
    /// Stop forwarding while too much fails.
    #[serde(rename = "circuitbreaker")]
    pub circuit_breaker: Option<CircuitBreaker>,
    /// Who may connect.
    #[serde(rename = "iprestriction")]
    pub ip_restriction: Option<IpRestriction>,
    /// Users and their passwords.
    #[serde(rename = "basicauth")]
    pub basic_auth: Option<BasicAuth>,
    /// Sign-in at a known provider.
    pub oauth: Option<OAuth>,
    /// Sign-in at any provider.
    pub oidc: Option<Oidc>,
    /// Requests must be signed.
    #[serde(rename = "webhookverification")]
    pub webhook_verification: Option<WebhookVerification>,
    /// Clients must have a certificate of these authorities; http and https.
    #[serde(rename = "mutualtlsca")]
    pub mutual_tls_ca: Option<MutualTls>,
    /// The same; tls.
    #[serde(rename = "mutualtlsatedge")]
    pub mutual_tls_at_edge: Option<MutualTls>,
    /// Changes to requests.
    #[serde(rename = "requestheaders")]
    pub request_headers: Option<HeaderChanges>,
    /// Changes to responses.
    #[serde(rename = "responseheaders")]
    pub response_headers: Option<HeaderChanges>,
    /// WebSocket towards clients, bytes towards the service.
    #[serde(rename = "websockettcpconverter")]
    pub websocket_tcp_converter: Option<Enabled>,
    /// Which programs may ask.
    #[serde(rename = "useragentfilter")]
    pub user_agent_filter: Option<UserAgentFilter>,
    /// TLS ends at the server.
    #[serde(rename = "tlstermination")]
    pub tls_termination: Option<TlsTermination>,
    /// A policy as text; empty for none.
    #[serde(rename = "trafficpolicy")]
    pub traffic_policy: String,
}

impl Options {
    /// The name asked for, in the order in which the fields count. `None` to be given one.
    pub fn requested(&self) -> Option<&str> {
        [&self.url, &self.domain, &self.hostname, &self.addr]
            .into_iter()
            .map(String::as_str)
            .find(|name| !name.is_empty())
    }
}

/// Something that is on by being there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Enabled {}

/// Stop forwarding while too much fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CircuitBreaker {
    /// Share of responses of class 5xx, 0 to 1.
    pub error_threshold: f64,
}

/// Who may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IpRestriction {
    /// Networks that may.
    pub allow_cidrs: Vec<String>,
    /// Networks that may not.
    pub deny_cidrs: Vec<String>,
}

/// Users and their passwords.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct BasicAuth {
    /// One is enough.
    pub credentials: Vec<BasicCredential>,
}

/// A user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct BasicCredential {
    /// Its name.
    pub username: String,
    /// Its password.
    pub cleartext_password: culvert_base::Secret,
}

/// Sign-in at a known provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct OAuth {
    /// Its name.
    pub provider: String,
    /// Of the user's own application there.
    pub client_id: String,
    /// The same.
    pub client_secret: culvert_base::Secret,
    /// Who may.
    pub allow_emails: Vec<String>,
    /// Who may.
    pub allow_domains: Vec<String>,
    /// What is asked for.
    pub scopes: Vec<String>,
}

/// Sign-in at any provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Oidc {
    /// Where the provider is.
    pub issuer_url: String,
    /// Of the user's application there.
    pub client_id: String,
    /// The same.
    pub client_secret: culvert_base::Secret,
    /// Who may.
    pub allow_emails: Vec<String>,
    /// Who may.
    pub allow_domains: Vec<String>,
    /// What is asked for.
    pub scopes: Vec<String>,
}

/// Requests must be signed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct WebhookVerification {
    /// Whose scheme.
    pub provider: String,
    /// The key.
    pub secret: culvert_base::Secret,
}

/// Clients must have a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct MutualTls {
    /// Base64 of PEM certificates, one behind the other.
    pub mutual_tls_ca: String,
}

/// Changes to header fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HeaderChanges {
    /// `name:value` each.
    pub add: Vec<String>,
    /// Names.
    pub remove: Vec<String>,
}

/// Which programs may ask.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct UserAgentFilter {
    /// Regular expressions.
    pub allow: Vec<String>,
    /// Regular expressions.
    pub deny: Vec<String>,
}

/// TLS ends at the server: with this certificate, or with the server's own if it is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TlsTermination {
    /// Base64 of PEM.
    pub cert: String,
    /// Base64 of PEM.
    pub key: culvert_base::Secret,
}
