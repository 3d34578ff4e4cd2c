//! The Bind call, with which an agent requests an endpoint and its options.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::parse;

/// The request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct BindRequest {
    /// Empty to let the server choose; otherwise the id of an earlier reply to keep.
    #[serde(rename(serialize = "Id", deserialize = "id"))]
    pub id: String,
    /// `http`, `https`, `tcp` or `tls`.
    #[serde(rename(serialize = "Proto", deserialize = "proto"))]
    pub proto: String,
    /// The address of the upstream, for display.
    #[serde(rename(serialize = "ForwardsTo", deserialize = "forwardsto"))]
    pub forwards_to: String,
    /// Protocol of the upstream: empty, `http1` or `http2`.
    #[serde(rename(serialize = "ForwardsProto", deserialize = "forwardsproto"))]
    pub forwards_proto: String,
    /// The options, as sent. [`BindRequest::options`] decodes them; the reply returns them.
    #[serde(rename(serialize = "Opts", deserialize = "opts"))]
    pub opts: Value,
    /// Further fields.
    #[serde(rename(serialize = "Extra", deserialize = "extra"))]
    pub extra: BindExtra,
}

impl BindRequest {
    /// Decodes a request and keeps the options as they were spelled, because agents replace theirs with those
    /// of the reply and send them again when they reconnect.
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

    /// Decodes the options.
    pub fn options(&self) -> Result<Options, serde_json::Error> {
        parse(self.opts.clone())
    }

    /// The options for the reply: as sent, with the assigned name in the field that the agent would have used
    /// for it.
    ///
    /// `name` is `host`, or `host:port` for tcp; `url` is the whole URL.
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

/// Further fields of a Bind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct BindExtra {
    /// The token of the last reply, which proves that the agent may have the name again.
    #[serde(rename(serialize = "Token", deserialize = "token"))]
    pub token: String,
    /// Empty from libraries.
    #[serde(rename(serialize = "IPPolicyRef", deserialize = "ippolicyref"))]
    pub ip_policy_ref: String,
    /// Metadata of the application.
    #[serde(rename(serialize = "Metadata", deserialize = "metadata"))]
    pub metadata: String,
    /// `public`, `internal` or `kubernetes`.
    #[serde(rename(serialize = "Bindings", deserialize = "bindings"))]
    pub bindings: Vec<String>,
    /// Whether other endpoints may share the URL.
    #[serde(rename(serialize = "PoolingEnabled", deserialize = "poolingenabled"))]
    pub pooling_enabled: bool,
    /// The endpoint's name.
    #[serde(rename(serialize = "Name", deserialize = "name"))]
    pub name: String,
    /// The endpoint's description.
    #[serde(rename(serialize = "Description", deserialize = "description"))]
    pub description: String,
}

/// The reply to a Bind.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct BindReply {
    /// The endpoint's id in headers and commands.
    #[serde(rename(serialize = "Id", deserialize = "id"))]
    pub id: String,
    /// The public URL of the endpoint.
    #[serde(rename(serialize = "URL", deserialize = "url"))]
    pub url: String,
    /// The protocol, as requested.
    #[serde(rename(serialize = "Proto", deserialize = "proto"))]
    pub proto: String,
    /// The options. They replace the agent's own, so all of them must be present.
    #[serde(rename(serialize = "Opts", deserialize = "opts"))]
    pub opts: Value,
    /// Empty for success.
    #[serde(rename(serialize = "Error", deserialize = "error"))]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Further fields.
    #[serde(rename(serialize = "Extra", deserialize = "extra"))]
    pub extra: BindReplyExtra,
}

/// Further fields of the reply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct BindReplyExtra {
    /// A token, which the agent sends when it requests the endpoint again.
    #[serde(rename(serialize = "Token", deserialize = "token"))]
    pub token: String,
    /// The endpoint's id in [`super::PatchRequest`].
    #[serde(rename(serialize = "TunnelID", deserialize = "tunnelid"))]
    pub tunnel_id: String,
}

/// The options of an endpoint. One type for all protocols: options that a protocol does not have are absent.
/// Within an option, absent means empty.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Options {
    /// The URL that the user of a Go agent set.
    pub url: String,
    /// The requested host, from newer Rust-based agents.
    pub domain: String,
    /// The requested host, from older Rust-based agents.
    pub hostname: String,
    /// A label under the base domain.
    pub subdomain: String,
    /// `host:port` of a tcp endpoint.
    pub addr: String,
    /// `user:password`, from very old agents.
    pub auth: String,
    /// Version of the PROXY protocol towards the agent: 0 (none), 1 or 2.
    #[serde(rename = "proxyproto")]
    pub proxy_proto: i64,
    /// Compress responses.
    pub compression: Option<Enabled>,
    /// Stop forwarding while too many responses fail.
    #[serde(rename = "circuitbreaker")]
    pub circuit_breaker: Option<CircuitBreaker>,
    /// IP addresses that may connect.
    #[serde(rename = "iprestriction")]
    pub ip_restriction: Option<IpRestriction>,
    /// Users and passwords.
    #[serde(rename = "basicauth")]
    pub basic_auth: Option<BasicAuth>,
    /// Sign-in at a predefined provider.
    pub oauth: Option<OAuth>,
    /// Sign-in at any OpenID Connect provider.
    pub oidc: Option<Oidc>,
    /// Requests must have a valid webhook signature.
    #[serde(rename = "webhookverification")]
    pub webhook_verification: Option<WebhookVerification>,
    /// Clients must have a certificate of these CAs; for http and https.
    #[serde(rename = "mutualtlsca")]
    pub mutual_tls_ca: Option<MutualTls>,
    /// Clients must have a certificate of these CAs; for tls.
    #[serde(rename = "mutualtlsatedge")]
    pub mutual_tls_at_edge: Option<MutualTls>,
    /// Changes to requests.
    #[serde(rename = "requestheaders")]
    pub request_headers: Option<HeaderChanges>,
    /// Changes to responses.
    #[serde(rename = "responseheaders")]
    pub response_headers: Option<HeaderChanges>,
    /// Converts WebSocket connections of clients to plain bytes for the service.
    #[serde(rename = "websockettcpconverter")]
    pub websocket_tcp_converter: Option<Enabled>,
    /// User agents that may send requests.
    #[serde(rename = "useragentfilter")]
    pub user_agent_filter: Option<UserAgentFilter>,
    /// The server terminates TLS.
    #[serde(rename = "tlstermination")]
    pub tls_termination: Option<TlsTermination>,
    /// The traffic policy as text; empty for none.
    #[serde(rename = "trafficpolicy")]
    pub traffic_policy: String,
    /// Whether `//` in paths becomes `/`; absent for the default. Only in culvert's protocol.
    #[serde(rename = "mergeslashes")]
    pub merge_slashes: Option<bool>,
    /// The timeouts of the endpoint. Only in culvert's protocol.
    pub timeouts: EndpointTimeouts,
}

/// The timeouts of an endpoint, as durations such as `90s`; empty for the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EndpointTimeouts {
    /// To connect to the service.
    pub connect: String,
    /// From the end of the request to the first byte of the response.
    pub first_byte: String,
    /// Of silence in both directions.
    pub idle: String,
    /// While the client reads nothing.
    pub write: String,
    /// While the client sends nothing of a request.
    pub request: String,
}

impl EndpointTimeouts {
    /// Their names.
    pub const NAMES: [&str; 5] = ["connect", "first_byte", "idle", "write", "request"];
}

impl Options {
    /// The requested name, by the precedence of the fields. `None` to let the server choose.
    pub fn requested(&self) -> Option<&str> {
        [&self.url, &self.domain, &self.hostname, &self.addr]
            .into_iter()
            .map(String::as_str)
            .find(|name| !name.is_empty())
    }
}

/// An option that is enabled if it is present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Enabled {}

/// Stops forwarding while too many responses fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CircuitBreaker {
    /// Fraction of responses with status 5xx, from 0 to 1.
    pub error_threshold: f64,
}

/// IP addresses that may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IpRestriction {
    /// Allowed networks.
    pub allow_cidrs: Vec<String>,
    /// Denied networks.
    pub deny_cidrs: Vec<String>,
}

/// Users and passwords.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct BasicAuth {
    /// The accepted credentials; any of them suffices.
    pub credentials: Vec<BasicCredential>,
}

/// A user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct BasicCredential {
    /// The user name.
    pub username: String,
    /// The password.
    pub cleartext_password: culvert_base::Secret,
}

/// Sign-in at a predefined provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct OAuth {
    /// The provider's name.
    pub provider: String,
    /// The client ID of the user's own OAuth application.
    pub client_id: String,
    /// The client secret of that application.
    pub client_secret: culvert_base::Secret,
    /// E-mail addresses that may sign in.
    pub allow_emails: Vec<String>,
    /// E-mail domains that may sign in.
    pub allow_domains: Vec<String>,
    /// The requested scopes.
    pub scopes: Vec<String>,
}

/// Sign-in at any OpenID Connect provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Oidc {
    /// The issuer URL of the provider.
    pub issuer_url: String,
    /// The client ID of the user's application.
    pub client_id: String,
    /// The client secret of that application.
    pub client_secret: culvert_base::Secret,
    /// E-mail addresses that may sign in.
    pub allow_emails: Vec<String>,
    /// E-mail domains that may sign in.
    pub allow_domains: Vec<String>,
    /// The requested scopes.
    pub scopes: Vec<String>,
}

/// Requests must have a valid webhook signature.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct WebhookVerification {
    /// The provider whose signature scheme applies.
    pub provider: String,
    /// The signing key.
    pub secret: culvert_base::Secret,
}

/// Clients must have a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct MutualTls {
    /// Base64 of concatenated PEM certificates.
    pub mutual_tls_ca: String,
}

/// Changes to header fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HeaderChanges {
    /// Fields to add, each as `name:value`.
    pub add: Vec<String>,
    /// Names of fields to remove.
    pub remove: Vec<String>,
}

/// User agents that may send requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct UserAgentFilter {
    /// Regular expressions of allowed user agents.
    pub allow: Vec<String>,
    /// Regular expressions of denied user agents.
    pub deny: Vec<String>,
}

/// The server terminates TLS, with this certificate, or with its own if this is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TlsTermination {
    /// Base64 of the PEM certificate.
    pub cert: String,
    /// Base64 of the PEM private key.
    pub key: culvert_base::Secret,
}
