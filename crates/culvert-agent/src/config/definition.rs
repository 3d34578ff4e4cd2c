//! The definition of an endpoint: a tunnel or an endpoint of ngrok's configuration file, versions 2 and 3, or of its
//! agent API. Both forms share their fields; an endpoint has `upstream` where a tunnel has `addr`.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_tunnel::client::{
    Endpoint, FLAGS, Given, Protocol, RequestedEndpoint, RequestedTls, TlsEnd, Upstream,
};
use http::Uri;
use serde_json::{Map, Value, json};

use super::policy_url;

/// Fields that have another name than the flag that they set.
const FIELDS: &[(&str, &str)] = &[
    ("app_protocol", "upstream-protocol"),
    ("auth", "basic-auth"),
    ("bindings", "binding"),
    ("ip_restriction.allow_cidrs", "cidr-allow"),
    ("ip_restriction.deny_cidrs", "cidr-deny"),
    ("oauth.allow_domains", "oauth-allow-domain"),
    ("oauth.allow_emails", "oauth-allow-email"),
    ("oauth.client_id", "oauth-client-id"),
    ("oauth.client_secret", "oauth-client-secret"),
    ("oauth.oauth_scopes", "oauth-scope"),
    ("oauth.provider", "oauth"),
    ("oauth.scopes", "oauth-scope"),
    ("oidc.allow_domains", "oidc-allow-domain"),
    ("oidc.allow_emails", "oidc-allow-email"),
    ("oidc.client_id", "oidc-client-id"),
    ("oidc.client_secret", "oidc-client-secret"),
    ("oidc.issuer_url", "oidc"),
    ("oidc.scopes", "oidc-scope"),
    ("policy_file", "traffic-policy-file"),
    ("request_header.add", "request-header-add"),
    ("request_header.remove", "request-header-remove"),
    ("response_header.add", "response-header-add"),
    ("response_header.remove", "response-header-remove"),
    ("upstream.protocol", "upstream-protocol"),
    ("upstream.proxy_protocol", "proxy-proto"),
    ("upstream_proxy_protocol", "proxy-proto"),
    ("user_agent_filter.allow", "ua-filter-allow"),
    ("user_agent_filter.deny", "ua-filter-deny"),
    ("verify_webhook.provider", "verify-webhook"),
    ("verify_webhook.secret", "verify-webhook-secret"),
];

/// Fields without an equal, and why.
const REFUSED: &[(&str, &str)] = &[(
    "labels",
    "culvert has no edges; instead of labels, give the tunnel the `proto` of the edge and its host as `domain`, and `pooling_enabled: true` if several agents have these labels",
)];
/// The field with the URL of a policy.
pub(crate) const POLICY_URL: &str = "traffic_policy_url";

/// A key that cannot be used as it is, and why: a sentence without a full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The path of the key within its object.
    pub(crate) path: String,
    /// The reason.
    pub(crate) why: String,
}

impl Finding {
    pub(crate) fn new(path: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            why: why.into(),
        }
    }
}

/// The values that name files.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Files<'a> {
    /// Are relative to this directory.
    In(&'a Path),
    /// Do not exist: the values are the contents.
    Inline,
}

impl Files<'_> {
    fn text(self, value: &Value) -> Result<String, String> {
        let bytes = self.bytes(value)?;
        String::from_utf8(bytes).map_err(|_| "the file is not UTF-8".into())
    }

    fn bytes(self, value: &Value) -> Result<Vec<u8>, String> {
        let Value::String(text) = value else {
            return Err("the value must be the name of a file".into());
        };
        match self {
            // PEM may stand in the place of a file's name.
            Self::In(_) if text.contains("-----BEGIN ") => Ok(text.clone().into_bytes()),
            Self::In(folder) => {
                let path = folder.join(text);
                std::fs::read(&path)
                    .map_err(|error| format!("reading `{}`: {error}", path.display()))
            }
            Self::Inline => Ok(text.clone().into_bytes()),
        }
    }
}

/// The endpoints of a definition: one, or two if it has both schemes of HTTP.
#[derive(Debug)]
pub(crate) struct Defined {
    pub(crate) endpoints: Vec<Endpoint>,
    /// The URL of their policy.
    pub(crate) policy_url: Option<Uri>,
    /// Values that differ from what they would mean elsewhere.
    pub(crate) notices: Vec<Finding>,
}

/// Reads a definition.
pub(crate) fn read(body: &Value, files: Files<'_>) -> Result<Defined, Finding> {
    let body = body
        .as_object()
        .ok_or_else(|| Finding::new("", "the definition must be an object"))?;
    let name = text(body, "name")?.unwrap_or_default();
    if name.is_empty() {
        return Err(Finding::new("name", "the value is missing"));
    }
    let address = address(body)?;
    let kind = kind(body, &address)?;
    let mut reading = Reading {
        kind,
        files,
        wanted: RequestedEndpoint::default(),
        is_inspected: true,
        schemes: None,
        policy_url: None,
        policy_key: None,
        upstream_tls: RequestedTls::default(),
        upstream_tls_key: String::new(),
        certificate: None,
        key: None,
        certificate_key: "crt",
        terminate_at: None,
        notices: Vec::new(),
    };
    for (name, value) in body {
        reading.field(name, value)?;
    }
    reading.finish(&address, body)
}

/// The service: `addr` of a tunnel or `upstream.url` of an endpoint.
fn address(body: &Map<String, Value>) -> Result<String, Finding> {
    let (path, value) = match (body.get("addr"), body.get("upstream")) {
        (Some(_), Some(_)) => {
            let why = "`addr` and `upstream` are mutually exclusive";
            return Err(Finding::new("upstream", why));
        }
        (None, Some(Value::Object(upstream))) => ("upstream.url", upstream.get("url")),
        (None, Some(_)) => return Err(Finding::new("upstream", "the value must be an object")),
        (address, None) => ("addr", address),
    };
    match value {
        Some(Value::String(address)) => Ok(address.clone()),
        Some(Value::Number(port)) => Ok(port.to_string()),
        _ => Err(Finding::new(
            path,
            "the value must be a port or the URL of a service",
        )),
    }
}

/// The protocol: `proto`, or that of the URLs.
fn kind(body: &Map<String, Value>, address: &str) -> Result<Protocol, Finding> {
    if let Some(proto) = text(body, "proto")? {
        return match &proto[..] {
            "http" | "https" => Ok(Protocol::Http),
            "tcp" => Ok(Protocol::Tcp),
            "tls" => Ok(Protocol::Tls),
            other => {
                let why = format!("the value must be http, tcp or tls, not `{other}`");
                Err(Finding::new("proto", why))
            }
        };
    }
    let url = text(body, "url")?.unwrap_or_default();
    let scheme = |text: &str| {
        let (scheme, _) = text.split_once("://")?;
        Protocol::parse(scheme)
    };
    Ok(scheme(&url)
        .or_else(|| scheme(address))
        .unwrap_or(Protocol::Https))
}

/// A definition that is being read.
struct Reading<'a> {
    kind: Protocol,
    files: Files<'a>,
    wanted: RequestedEndpoint,
    is_inspected: bool,
    schemes: Option<Schemes>,
    policy_url: Option<Uri>,
    /// The key that gave the policy.
    policy_key: Option<String>,
    upstream_tls: RequestedTls,
    /// The last key that gave one of its options.
    upstream_tls_key: String,
    certificate: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
    /// The key of the file that gave the certificate or its private key.
    certificate_key: &'static str,
    terminate_at: Option<String>,
    notices: Vec<Finding>,
}

/// An option of TLS to the service.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TlsOption {
    Verify,
    Authorities,
    ServerName,
    Pins,
    Certificate,
    PrivateKey,
}

/// The option with this key. The first names are those of ngrok's files, where it has the option.
fn upstream_tls_option(path: &str) -> Option<TlsOption> {
    Some(match path {
        "upstream.tls_verify" | "upstream_tls_verify" | "verify_upstream_tls" => TlsOption::Verify,
        "upstream.tls_verify_cas"
        | "upstream_tls_verify_cas"
        | "verify_upstream_tls_cas"
        | "upstream.ca_file" => TlsOption::Authorities,
        "upstream.tls_server_name" | "upstream_tls_server_name" => TlsOption::ServerName,
        "upstream.tls_pins" | "upstream_tls_pins" => TlsOption::Pins,
        "upstream.tls_certificate" | "upstream_tls_certificate" => TlsOption::Certificate,
        "upstream.tls_private_key" | "upstream_tls_private_key" => TlsOption::PrivateKey,
        _ => return None,
    })
}

/// The schemes of an http endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Schemes {
    Http,
    Https,
    Both,
}

impl Reading<'_> {
    /// Applies a field, or the fields in it.
    fn field(&mut self, path: &str, value: &Value) -> Result<(), Finding> {
        let wrong = |why: String| Finding::new(path, why);
        if value.is_null() {
            return Ok(());
        }
        if let Some((_, why)) = REFUSED.iter().find(|(name, _)| *name == path) {
            return Err(wrong((*why).to_owned()));
        }
        if matches!(
            path,
            POLICY_URL | "traffic_policy" | "traffic_policy_file" | "policy" | "policy_file"
        ) && let Some(other) = self.policy_key.replace(path.to_owned())
        {
            let why = format!("`{other}` and `{path}` are mutually exclusive");
            return Err(wrong(why));
        }
        if let Some(option) = upstream_tls_option(path) {
            path.clone_into(&mut self.upstream_tls_key);
            return self.upstream_tls_option(option, value).map_err(wrong);
        }
        match path {
            // Read before.
            "proto" | "addr" | "upstream.url" | "host_header" => Ok(()),
            "inspect" => {
                self.is_inspected = truth(value).map_err(wrong)?;
                Ok(())
            }
            "schemes" | "bind_tls" => {
                self.only_for(Protocol::is_http, path)?;
                let schemes = match path {
                    "schemes" => schemes(value),
                    _ => bind_tls(value),
                };
                self.schemes = Some(schemes.map_err(wrong)?);
                Ok(())
            }
            "traffic_policy" | "policy" => {
                let policy = match value {
                    Value::String(text) => text.clone(),
                    Value::Object(_) => value.to_string(),
                    _ => return Err(wrong("the value must be an object or a text".into())),
                };
                self.apply(path, "traffic-policy-file", &policy)
            }
            POLICY_URL => {
                if matches!(self.files, Files::Inline) {
                    let why = "only files may have this key; send the policy as `traffic_policy`";
                    return Err(wrong(why.into()));
                }
                let url = value.as_str().ok_or("the value must be a URL".to_owned());
                let url = url.and_then(policy_url::parse).map_err(wrong)?;
                self.policy_url = Some(url);
                Ok(())
            }
            "upstream.protocol" if *value == self.kind.as_str() && !self.kind.is_http() => Ok(()),
            "crt" | "key" => {
                self.only_for(|kind| kind == Protocol::Tls, path)?;
                let bytes = Some(self.files.bytes(value).map_err(wrong)?);
                match path {
                    "crt" => self.certificate = bytes,
                    _ => self.key = bytes,
                }
                Ok(())
            }
            "agent_tls_termination.server_certificate"
            | "agent_tls_termination.server_private_key" => {
                self.only_for(|kind| kind == Protocol::Tls, path)?;
                self.certificate_key = "agent_tls_termination";
                let bytes = Some(self.files.bytes(value).map_err(wrong)?);
                match path {
                    "agent_tls_termination.server_certificate" => self.certificate = bytes,
                    _ => self.key = bytes,
                }
                Ok(())
            }
            "agent_tls_termination.mutual_tls_certificate_authorities" => {
                let mut all = String::new();
                for one in items(value) {
                    all.push_str(&self.files.text(one).map_err(wrong)?);
                    all.push('\n');
                }
                self.apply(path, "mutual-tls-cas", &all)
            }
            "terminate_at" => {
                self.only_for(|kind| kind == Protocol::Tls, path)?;
                match value.as_str() {
                    Some(place @ ("edge" | "agent" | "upstream")) => {
                        self.terminate_at = Some(place.to_owned());
                        Ok(())
                    }
                    _ => Err(wrong("the value must be edge, agent or upstream".into())),
                }
            }
            _ => match (FIELDS.iter().find(|(name, _)| *name == path), value) {
                (Some((_, flag)), _) => self.set(path, flag, value),
                (None, Value::Object(fields)) => fields
                    .iter()
                    .try_for_each(|(name, value)| self.field(&format!("{path}.{name}"), value)),
                (None, _) => self.set(path, &path.replace('_', "-"), value),
            },
        }
    }

    /// Takes an option of TLS to the service.
    fn upstream_tls_option(&mut self, option: TlsOption, value: &Value) -> Result<(), String> {
        let requested = &mut self.upstream_tls;
        match option {
            TlsOption::Verify => requested.verify = Some(truth(value)?),
            TlsOption::Authorities => requested.authorities = Some(self.files.bytes(value)?),
            TlsOption::Certificate => requested.certificate = Some(self.files.bytes(value)?),
            TlsOption::PrivateKey => requested.private_key = Some(self.files.bytes(value)?),
            TlsOption::ServerName => {
                let name = value.as_str().ok_or("the value must be a text")?;
                requested.server_name = Some(name.to_owned());
            }
            TlsOption::Pins => {
                let pins = items(value)
                    .iter()
                    .map(|pin| pin.as_str().map(str::to_owned));
                let pins: Option<Vec<String>> = pins.collect();
                requested.pins = pins.ok_or("the value must be a list of texts")?;
            }
        }
        Ok(())
    }

    fn only_for(&self, is: impl Fn(Protocol) -> bool, path: &str) -> Result<(), Finding> {
        match is(self.kind) {
            true => Ok(()),
            false => Err(self.unsupported(path)),
        }
    }

    fn unsupported(&self, path: &str) -> Finding {
        let command = self.kind.command();
        Finding::new(path, format!("a {command} endpoint has no such key"))
    }

    /// Applies a flag, once for each value.
    fn set(&mut self, path: &str, flag: &str, value: &Value) -> Result<(), Finding> {
        let Some(flag) = FLAGS.iter().find(|known| known.name == flag) else {
            return Err(Finding::new(path, "unknown key"));
        };
        let values = match value {
            Value::Array(values) if flag.many => &values[..],
            one => std::slice::from_ref(one),
        };
        for value in values {
            let text = match value {
                _ if flag.given == Given::File => self
                    .files
                    .text(value)
                    .map_err(|why| Finding::new(path, why))?,
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                Value::Bool(value) => value.to_string(),
                _ => return Err(Finding::new(path, "the value has the wrong type")),
            };
            self.apply(path, flag.name, &text)?;
        }
        Ok(())
    }

    fn apply(&mut self, path: &str, flag: &str, text: &str) -> Result<(), Finding> {
        let flag = FLAGS
            .iter()
            .find(|known| known.name == flag && known.scope.has(self.kind))
            .ok_or_else(|| self.unsupported(path))?;
        (flag.apply)(&mut self.wanted, text).map_err(|why| Finding::new(path, why))
    }

    /// Builds the endpoints.
    fn finish(mut self, address: &str, body: &Map<String, Value>) -> Result<Defined, Finding> {
        let path = match body.contains_key("upstream") {
            true => "upstream.url",
            false => "addr",
        };
        let options = self.upstream_tls.options();
        let options = options.map_err(|why| Finding::new(&*self.upstream_tls_key, why))?;
        let upstream = Upstream::parse(address, self.kind, self.wanted.http2, &options);
        let upstream = upstream.map_err(|why| Finding::new(path, why))?;
        if let Some(host) = text(body, "host_header")? {
            self.only_for(Protocol::is_http, "host_header")?;
            self.wanted.set_host_header(&host, &upstream);
        }
        let tls_end = self.tls_end()?;
        let mut schemes = vec![None];
        match self.schemes {
            None => {}
            Some(Schemes::Http) => schemes = vec![Some("http")],
            Some(Schemes::Https) => schemes = vec![Some("https")],
            Some(Schemes::Both) if self.wanted.named_by().next().is_some() => {
                schemes = vec![Some("https"), Some("http")];
            }
            Some(Schemes::Both) => {
                let why = "without a name, the tunnel has only https, because the server assigns each endpoint another name";
                self.notices.push(Finding::new("schemes", why));
                schemes = vec![Some("https")];
            }
        }
        let mut endpoints = Vec::new();
        for scheme in schemes {
            let mut wanted = self.wanted.clone();
            if let Some(scheme) = scheme
                && let Some(flag) = FLAGS.iter().find(|flag| flag.name == "scheme")
            {
                (flag.apply)(&mut wanted, scheme).map_err(|why| Finding::new("schemes", why))?;
            }
            let endpoint = Endpoint::new(self.kind, wanted, upstream.clone());
            let mut endpoint = endpoint.map_err(|why| Finding::new("url", why))?;
            endpoint.is_inspected = self.is_inspected;
            endpoint.tls_end.clone_from(&tls_end);
            if !endpoints.is_empty() {
                endpoint.name.push_str(" (http)");
            }
            endpoints.push(endpoint);
        }
        Ok(Defined {
            endpoints,
            policy_url: self.policy_url,
            notices: self.notices,
        })
    }

    /// TLS termination, at the agent unless the definition says `edge`.
    fn tls_end(&mut self) -> Result<Option<TlsEnd>, Finding> {
        let (chain, key) = (self.certificate.as_deref(), self.key.as_deref());
        let path = match self.terminate_at {
            Some(_) => "terminate_at",
            None => self.certificate_key,
        };
        termination(&mut self.wanted, chain, key, self.terminate_at.as_deref())
            .map_err(|why| Finding::new(path, why))
    }
}

/// Decides where the TLS of a tls endpoint is terminated: at the agent if it has a certificate, unless `place` says
/// `edge`. The error is a sentence without a full stop.
pub(super) fn termination(
    wanted: &mut RequestedEndpoint,
    chain: Option<&[u8]>,
    key: Option<&[u8]>,
    place: Option<&str>,
) -> Result<Option<TlsEnd>, String> {
    match (chain, key, place) {
        (None, None, None | Some("upstream")) => Ok(None),
        (None, None, Some("edge")) => {
            wanted.set_option("TLSTermination", json!({}));
            Ok(None)
        }
        (None, None, _) => Err("the agent needs a certificate and its key to terminate TLS".into()),
        (Some(_), Some(_), Some("upstream")) => {
            Err("with a certificate, TLS is terminated at the agent or the edge".into())
        }
        (Some(chain), Some(key), Some("edge")) => {
            let option = json!({"cert": STANDARD.encode(chain), "key": STANDARD.encode(key)});
            wanted.set_option("TLSTermination", option);
            Ok(None)
        }
        (Some(chain), Some(key), _) => {
            let authorities = wanted.take_authorities();
            let authorities = authorities.as_deref().map(str::as_bytes);
            TlsEnd::new(chain, key, authorities).map(Some)
        }
        (Some(_), None, _) => Err("the private key of the certificate is missing".into()),
        (None, Some(_), _) => Err("the certificate of the private key is missing".into()),
    }
}

fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(values) => values,
        one => std::slice::from_ref(one),
    }
}

fn schemes(value: &Value) -> Result<Schemes, String> {
    let has = |scheme: &str| items(value).iter().any(|it| it == scheme);
    let are_known = items(value).iter().all(|it| it == "http" || it == "https");
    match (has("https"), has("http")) {
        (true, true) if are_known => Ok(Schemes::Both),
        (true, false) if are_known => Ok(Schemes::Https),
        (false, true) if are_known => Ok(Schemes::Http),
        _ => Err("the value must be a list of http and https".into()),
    }
}

fn bind_tls(value: &Value) -> Result<Schemes, String> {
    match (value.as_bool(), value.as_str()) {
        (Some(true), _) | (_, Some("true")) => Ok(Schemes::Https),
        (Some(false), _) | (_, Some("false")) => Ok(Schemes::Http),
        (_, Some("both")) => Ok(Schemes::Both),
        _ => Err("the value must be true, false or both".into()),
    }
}

/// A boolean, also as text.
pub(super) fn truth(value: &Value) -> Result<bool, String> {
    match (value.as_bool(), value.as_str()) {
        (Some(value), _) => Ok(value),
        (_, Some("true")) => Ok(true),
        (_, Some("false")) => Ok(false),
        _ => Err("the value must be true or false".into()),
    }
}

fn text(body: &Map<String, Value>, name: &str) -> Result<Option<String>, Finding> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(Finding::new(name, "the value must be a text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defined(body: &Value) -> Defined {
        read(body, Files::Inline).unwrap()
    }

    #[test]
    fn tunnels_accept_the_fields_of_ngroks_format() {
        let endpoint = defined(&json!({
            "name": "web", "proto": "http", "addr": 8080, "schemes": ["http"], "inspect": false,
            "domain": "app.test", "basic_auth": ["a:long enough"], "compression": true,
            "oauth": {"provider": "google", "allow_domains": ["a.test", "b.test"]},
            "request_header": {"add": ["x: y"], "remove": ["z"]}, "circuit_breaker": 0.5,
            "host_header": "rewrite", "metadata": "m", "traffic_policy": {"on_http_request": []},
        }))
        .endpoints
        .remove(0);
        assert_eq!(endpoint.name, "web");
        assert_eq!(endpoint.protocol, Protocol::Http);
        assert_eq!(endpoint.upstream.as_str(), "http://localhost:8080");
        assert!(!endpoint.is_inspected);
    }

    #[test]
    fn a_tunnel_with_both_schemes_becomes_two_endpoints() {
        let names = |body: Value| {
            let endpoints = defined(&body).endpoints;
            let shown = |it: &Endpoint| format!("{} {}", it.name, it.protocol.as_str());
            endpoints.iter().map(shown).collect::<Vec<_>>()
        };
        let both = json!({"name": "web", "proto": "http", "addr": 80, "domain": "a.test", "schemes": ["http", "https"]});
        assert_eq!(names(both), ["web https", "web (http) http"]);
        let unnamed = json!({"name": "web", "proto": "http", "addr": 80, "bind_tls": "both"});
        assert_eq!(defined(&unnamed).notices.len(), 1);
        assert_eq!(names(unnamed), ["web https"]);
    }

    #[test]
    fn invalid_fields_are_named() {
        for (body, path, why) in [
            (json!([]), "", "must be an object"),
            (json!({"name": "a"}), "addr", "must be a port"),
            (json!({"addr": "80"}), "name", "is missing"),
            (
                json!({"name": "a", "addr": "80", "proto": "udp"}),
                "proto",
                "not `udp`",
            ),
            (
                json!({"name": "a", "addr": "80", "colour": "red"}),
                "colour",
                "unknown key",
            ),
            (
                json!({"name": "a", "addr": "22", "proto": "tcp", "basic_auth": ["a:b"]}),
                "basic_auth",
                "a tcp endpoint has no such key",
            ),
            (
                json!({"name": "a", "addr": "80", "schemes": "x"}),
                "schemes",
                "must be a list",
            ),
            (
                json!({"name": "a", "addr": "80", "oauth": {"colour": "red"}}),
                "oauth.colour",
                "unknown key",
            ),
            (
                json!({"name": 1, "addr": "80", "domain": {}}),
                "name",
                "must be a text",
            ),
            (
                json!({"name": "a", "addr": 80, "labels": ["a=b"]}),
                "labels",
                "no edges",
            ),
            (
                json!({"name": "a", "addr": 80, "traffic_policy_url": "https://a.test"}),
                "traffic_policy_url",
                "only files",
            ),
            (
                json!({"name": "a", "addr": "file://tmp"}),
                "addr",
                "must be absolute",
            ),
            (
                json!({"name": "a", "addr": 443, "proto": "tls", "terminate_at": "agent"}),
                "terminate_at",
                "needs a certificate",
            ),
            (
                json!({"name": "a", "upstream": {"url": 80, "tls_pins": ["00"]}}),
                "upstream.tls_pins",
                "a pin is a SHA-256",
            ),
            (
                json!({"name": "a", "upstream": {"url": 80, "tls_server_name": "a.test"}}),
                "upstream.url",
                "need an https or tls service",
            ),
            (
                json!({"name": "a", "addr": "https://a.test", "upstream_tls_certificate": "x"}),
                "upstream_tls_certificate",
                "needs its chain and its private key",
            ),
        ] {
            let found = read(&body, Files::Inline).unwrap_err();
            assert_eq!(found.path, path, "{body}");
            assert!(found.why.contains(why), "{body}: {}", found.why);
        }
    }
}
