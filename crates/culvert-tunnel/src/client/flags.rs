//! The options of endpoints: one table for the command line and for `ssh -R`.
//!
//! Values are copied into the options of a Bind, and the server validates them. Only values that cannot be
//! encoded are rejected here.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::endpoint::Protocol;
use super::upstream::Upstream;
use crate::wire::{BindExtra, BindRequest, EndpointTimeouts};

/// An option of an endpoint.
#[derive(Debug)]
pub struct Flag {
    /// The name, as in `--name`.
    pub name: &'static str,
    /// The kind of its value.
    pub given: Given,
    /// Whether it may be repeated.
    pub many: bool,
    /// The endpoints that it applies to.
    pub scope: FlagScope,
    /// The help text.
    pub doc: &'static str,
    /// Applies the value, or the content of a named file. The error is a sentence without a full stop.
    pub apply: fn(&mut RequestedEndpoint, &str) -> Result<(), String>,
}

/// The kind of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// None, `=true` or `=false`.
    Switch,
    /// A text, with its name in the help.
    Text(&'static str),
    /// The name of a file whose content is the value.
    File,
}

/// The endpoints that a flag applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlagScope {
    /// http and https endpoints.
    pub http: bool,
    /// tcp endpoints.
    pub tcp: bool,
    /// tls endpoints.
    pub tls: bool,
    /// Endpoints over SSH, which have no agent.
    pub ssh: bool,
}

impl FlagScope {
    /// Whether the flag applies to endpoints of this protocol.
    pub const fn has(self, protocol: Protocol) -> bool {
        match protocol {
            Protocol::Http | Protocol::Https => self.http,
            Protocol::Tcp => self.tcp,
            Protocol::Tls => self.tls,
        }
    }
}

const EVERYWHERE: FlagScope = FlagScope {
    http: true,
    tcp: true,
    tls: true,
    ssh: true,
};
const AGENT: FlagScope = FlagScope {
    ssh: false,
    ..EVERYWHERE
};
const HTTP: FlagScope = FlagScope {
    tcp: false,
    tls: false,
    ..EVERYWHERE
};
const NAMED: FlagScope = FlagScope {
    tcp: false,
    ..EVERYWHERE
};

/// The endpoint that a user requests.
#[derive(Clone, Debug, Default)]
pub struct RequestedEndpoint {
    url: String,
    host: String,
    subdomain: String,
    remote_addr: String,
    scheme: String,
    /// Whether the service uses HTTP/2.
    pub http2: bool,
    opts: Map<String, Value>,
    extra: BindExtra,
}

impl RequestedEndpoint {
    /// Sets the host to listen on, as an SSH client requests it.
    pub fn set_host(&mut self, host: &str) {
        self.host = host.to_owned();
    }

    /// Sets the `host:port` to listen on, as an SSH client requests it.
    pub fn set_remote_addr(&mut self, address: String) {
        self.remote_addr = address;
    }

    /// The given flags that determine the address to listen on.
    pub fn named_by(&self) -> impl Iterator<Item = &'static str> {
        [
            ("remote-addr", &self.remote_addr),
            ("hostname", &self.host),
            ("subdomain", &self.subdomain),
            ("url", &self.url),
        ]
        .into_iter()
        .filter_map(|(flag, name)| (!name.is_empty()).then_some(flag))
    }

    /// Removes the CAs of client certificates from the options, for an endpoint whose TLS the agent
    /// terminates: only the agent sees the certificates then, and a server that had to verify them would have
    /// to terminate TLS itself.
    pub fn take_authorities(&mut self) -> Option<String> {
        let authorities = self.opts.remove("MutualTLSCA");
        self.opts.remove("MutualTLSAtEdge");
        let text = STANDARD.decode(authorities?["mutual_tls_ca"].as_str()?);
        // Tells the server that the agent verifies certificates. This option exists only in culvert's
        // protocol.
        self.opts.insert("MutualTLSAtAgent".into(), true.into());
        String::from_utf8(text.ok()?).ok()
    }

    /// Sends this `Host` to the service. `rewrite` stands for the host of the service, `preserve` for that of the
    /// request.
    pub fn set_host_header(&mut self, value: &str, upstream: &Upstream) {
        let host = match value {
            "preserve" => return,
            "rewrite" => upstream.authority(),
            host => host.to_owned(),
        };
        self.push("RequestHeaders", "add", format!("host:{host}").into());
    }

    /// Sets an option by its name on the wire.
    pub fn set_option(&mut self, name: &str, value: Value) {
        self.opts.insert(name.to_owned(), value);
    }

    /// The name of the endpoint, for display.
    pub fn name(&self) -> &str {
        &self.extra.name
    }

    /// The Bind request. `kind` is the protocol that the user gave: `http` means https unless the URL or the
    /// scheme differs. `forwards_to` is for display.
    ///
    /// # Errors
    ///
    /// The error is a sentence without a full stop.
    pub fn bind(
        self,
        kind: Protocol,
        forwards_to: &str,
    ) -> Result<(Protocol, BindRequest), String> {
        let mut protocol = match kind {
            Protocol::Http | Protocol::Https => Protocol::Https,
            other => other,
        };
        if !self.scheme.is_empty() {
            protocol = match &self.scheme[..] {
                "http" => Protocol::Http,
                "https" => Protocol::Https,
                other => return Err(format!("the scheme must be http or https, not `{other}`")),
            };
        }
        if let Some((scheme, _)) = self.url.split_once("://") {
            let of_url =
                Protocol::parse(scheme).filter(|of_url| of_url.is_http() == kind.is_http());
            protocol = match of_url {
                Some(of_url) if kind.is_http() || of_url == kind => of_url,
                _ => {
                    return Err(format!(
                        "`{}` is not a valid URL for a {} endpoint",
                        self.url,
                        kind.command()
                    ));
                }
            };
        }
        let mut opts = self.opts;
        // A scheme alone, such as `tcp://`, requests no name.
        let url = if self.url.ends_with("://") {
            ""
        } else {
            &self.url
        };
        for (name, value) in [
            ("URL", url),
            ("Domain", &self.host),
            ("Subdomain", &self.subdomain),
            ("Addr", &self.remote_addr),
        ] {
            if !value.is_empty() {
                opts.insert(name.into(), value.into());
            }
        }
        // The server puts the name that it chose into the field that is present.
        if !["URL", "Domain", "Addr"]
            .into_iter()
            .any(|name| opts.contains_key(name))
        {
            opts.insert("URL".into(), "".into());
        }
        let request = BindRequest {
            proto: protocol.as_str().into(),
            forwards_to: forwards_to.to_owned(),
            forwards_proto: if self.http2 {
                "http2".into()
            } else {
                String::new()
            },
            opts: Value::Object(opts),
            extra: self.extra,
            ..BindRequest::default()
        };
        Ok((protocol, request))
    }

    /// An object within the options.
    fn section(&mut self, name: &str) -> &mut Map<String, Value> {
        let section = self.opts.entry(name).or_insert_with(|| json!({}));
        if !section.is_object() {
            *section = json!({});
        }
        section.as_object_mut().expect("it was made one")
    }

    fn set(&mut self, section: &str, name: &str, value: &str) {
        self.section(section).insert(name.to_owned(), value.into());
    }

    fn push(&mut self, section: &str, name: &str, value: Value) {
        let list = self
            .section(section)
            .entry(name)
            .or_insert_with(|| json!([]));
        if let Value::Array(list) = list {
            list.push(value);
        }
    }
}

fn truth(text: &str) -> Result<bool, String> {
    match text {
        "" | "true" => Ok(true),
        "false" => Ok(false),
        other => Err(format!(
            "the value must be `true` or `false`, not `{other}`"
        )),
    }
}

macro_rules! texts {
    ($($name:literal, $value:literal, $many:literal, $scope:expr, $doc:literal, $apply:expr;)*) => {
        &[$(Flag { name: $name, given: kind($value), many: $many, scope: $scope, doc: $doc, apply: $apply }),*]
    };
}

const fn kind(value: &'static str) -> Given {
    match value.as_bytes() {
        b"" => Given::Switch,
        b"@" => Given::File,
        _ => Given::Text(value),
    }
}

/// Every flag, in the order in which users look for them.
pub static FLAGS: &[Flag] = texts![
    "url", "URL", false, EVERYWHERE, "Public URL or host name [default: assigned by the server]",
        |to, text| { to.url = text.into(); Ok(()) };
    "domain", "HOST", false, NAMED, "Host name of the URL",
        |to, text| { to.host = text.into(); Ok(()) };
    "hostname", "HOST", false, NAMED, "Alias of --domain",
        |to, text| { to.host = text.into(); Ok(()) };
    "subdomain", "LABEL", false, NAMED, "Subdomain of the platform domain",
        |to, text| { to.subdomain = text.into(); Ok(()) };
    "remote-addr", "HOST:PORT", false, FlagScope { http: false, tls: false, ..EVERYWHERE },
        "Reserved TCP address",
        |to, text| { to.remote_addr = text.into(); Ok(()) };
    "scheme", "SCHEME", false, HTTP, "Public scheme, `http` or `https` [default: https]",
        |to, text| { to.scheme = text.into(); Ok(()) };
    "name", "NAME", false, EVERYWHERE, "Name of the endpoint",
        |to, text| { to.extra.name = text.into(); Ok(()) };
    "description", "TEXT", false, EVERYWHERE, "Description, at most 255 bytes",
        |to, text| { to.extra.description = text.into(); Ok(()) };
    "metadata", "TEXT", false, EVERYWHERE, "Metadata, at most 4096 bytes",
        |to, text| { to.extra.metadata = text.into(); Ok(()) };
    "binding", "BINDING", true, EVERYWHERE, "`public`, `internal` or `kubernetes`",
        |to, text| { to.extra.bindings.push(text.into()); Ok(()) };
    "pooling-enabled", "", false, EVERYWHERE, "Share the URL with other endpoints that enable pooling",
        |to, text| { to.extra.pooling_enabled = truth(text)?; Ok(()) };
    "pooling", "", false, EVERYWHERE, "Alias of --pooling-enabled",
        |to, text| { to.extra.pooling_enabled = truth(text)?; Ok(()) };
    "traffic-policy-file", "@", false, AGENT, "YAML or JSON file with a Traffic Policy",
        |to, text| { to.opts.insert("TrafficPolicy".into(), text.into()); Ok(()) };
    "proxy-proto", "VERSION", false, AGENT, "Send a PROXY protocol header to the service, version 1 or 2",
        |to, text| match text {
            "" | "0" => Ok(()),
            "1" | "2" => { to.opts.insert("ProxyProto".into(), i64::from(text == "2").saturating_add(1).into()); Ok(()) }
            other => Err(format!("the PROXY protocol version must be 1 or 2, not `{other}`")),
        };
    "upstream-protocol", "PROTOCOL", false, FlagScope { ssh: false, ..HTTP }, "Protocol of the service, `http1` or `http2`",
        |to, text| match text {
            "http1" => { to.http2 = false; Ok(()) }
            "http2" => { to.http2 = true; Ok(()) }
            other => Err(format!("the upstream protocol must be http1 or http2, not `{other}`")),
        };
    "basic-auth", "USER:PASSWORD", true, HTTP, "Require this user and password",
        |to, text| {
            let (user, password) = text.split_once(':')
                .ok_or("the value must be `user:password`")?;
            to.push("BasicAuth", "credentials", json!({"username": user, "cleartext_password": password}));
            Ok(())
        };
    "oauth", "PROVIDER", false, HTTP, "Require a sign-in at this OAuth provider",
        |to, text| { to.set("OAuth", "provider", text); Ok(()) };
    "oauth-client-id", "ID", false, HTTP, "Client ID of your application",
        |to, text| { to.set("OAuth", "client_id", text); Ok(()) };
    "oauth-client-secret", "SECRET", false, HTTP, "Client secret of your application",
        |to, text| { to.set("OAuth", "client_secret", text); Ok(()) };
    "oauth-allow-email", "EMAIL", true, HTTP, "E-mail address that may sign in",
        |to, text| { to.push("OAuth", "allow_emails", text.into()); Ok(()) };
    "oauth-allow-domain", "DOMAIN", true, HTTP, "E-mail domain that may sign in",
        |to, text| { to.push("OAuth", "allow_domains", text.into()); Ok(()) };
    "oauth-scope", "SCOPE", true, HTTP, "Scope to request",
        |to, text| { to.push("OAuth", "scopes", text.into()); Ok(()) };
    "oidc", "URL", false, HTTP, "Require a sign-in at this OpenID provider",
        |to, text| { to.set("OIDC", "issuer_url", text); Ok(()) };
    "oidc-client-id", "ID", false, HTTP, "Client ID of your application",
        |to, text| { to.set("OIDC", "client_id", text); Ok(()) };
    "oidc-client-secret", "SECRET", false, HTTP, "Client secret of your application",
        |to, text| { to.set("OIDC", "client_secret", text); Ok(()) };
    "oidc-allow-email", "EMAIL", true, HTTP, "E-mail address that may sign in",
        |to, text| { to.push("OIDC", "allow_emails", text.into()); Ok(()) };
    "oidc-allow-domain", "DOMAIN", true, HTTP, "E-mail domain that may sign in",
        |to, text| { to.push("OIDC", "allow_domains", text.into()); Ok(()) };
    "oidc-scope", "SCOPE", true, HTTP, "Scope to request",
        |to, text| { to.push("OIDC", "scopes", text.into()); Ok(()) };
    "cidr-allow", "CIDR", true, EVERYWHERE, "Allowed network; other networks are denied",
        |to, text| { to.push("IPRestriction", "allow_cidrs", text.into()); Ok(()) };
    "cidr-deny", "CIDR", true, EVERYWHERE, "Denied network",
        |to, text| { to.push("IPRestriction", "deny_cidrs", text.into()); Ok(()) };
    "compression", "", false, HTTP, "Compress responses",
        |to, text| {
            if truth(text)? { to.opts.insert("Compression".into(), json!({})); }
            Ok(())
        };
    "circuit-breaker", "RATIO", false, HTTP, "Reject requests while this share of responses fails, 0 to 1",
        |to, text| {
            let ratio: f64 = text.parse().map_err(|_| "the ratio must be a number from 0 to 1")?;
            to.section("CircuitBreaker").insert("error_threshold".into(), json!(ratio));
            Ok(())
        };
    "request-header-add", "NAME:VALUE", true, HTTP, "Header to add to requests",
        |to, text| { to.push("RequestHeaders", "add", text.into()); Ok(()) };
    "request-header-remove", "NAME", true, HTTP, "Header to remove from requests",
        |to, text| { to.push("RequestHeaders", "remove", text.into()); Ok(()) };
    "response-header-add", "NAME:VALUE", true, HTTP, "Header to add to responses",
        |to, text| { to.push("ResponseHeaders", "add", text.into()); Ok(()) };
    "response-header-remove", "NAME", true, HTTP, "Header to remove from responses",
        |to, text| { to.push("ResponseHeaders", "remove", text.into()); Ok(()) };
    "ua-filter-allow", "REGEX", true, HTTP, "Allowed user agents; others are denied",
        |to, text| { to.push("UserAgentFilter", "allow", text.into()); Ok(()) };
    "ua-filter-deny", "REGEX", true, HTTP, "Denied user agents",
        |to, text| { to.push("UserAgentFilter", "deny", text.into()); Ok(()) };
    "verify-webhook", "PROVIDER", false, HTTP, "Accept only webhooks signed by this provider",
        |to, text| { to.set("WebhookVerification", "provider", text); Ok(()) };
    "verify-webhook-secret", "SECRET", false, HTTP, "Webhook secret",
        |to, text| { to.set("WebhookVerification", "secret", text); Ok(()) };
    "merge-slashes", "", false, HTTP, "Whether `//` in paths becomes `/` [default: true]",
        |to, text| { to.opts.insert("MergeSlashes".into(), truth(text)?.into()); Ok(()) };
    "timeout", "NAME=DURATION", true, EVERYWHERE, "Timeout of the endpoint, such as `first_byte=90s`: connect, first_byte, idle, write or request",
        |to, text| {
            let (name, time) = text.split_once('=').ok_or("the value must be `name=duration`")?;
            if !EndpointTimeouts::NAMES.contains(&name) {
                return Err(format!("the name must be connect, first_byte, idle, write or request, not `{name}`"));
            }
            to.set("Timeouts", name, time);
            Ok(())
        };
    "websocket-tcp-converter", "", false, HTTP, "Convert client WebSocket connections to TCP for the service",
        |to, text| {
            if truth(text)? { to.opts.insert("WebsocketTCPConverter".into(), json!({})); }
            Ok(())
        };
    "mutual-tls-cas", "@", false, FlagScope { ssh: false, ..NAMED }, "PEM file of CAs; clients must present a certificate of one of them",
        |to, text| {
            let authorities = json!({"mutual_tls_ca": STANDARD.encode(text)});
            // http and tls use different names for this option; the server reads the one that applies.
            to.opts.insert("MutualTLSCA".into(), authorities.clone());
            to.opts.insert("MutualTLSAtEdge".into(), authorities);
            Ok(())
        };
];

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(kind: Protocol, given: &[(&str, &str)]) -> Result<(Protocol, BindRequest), String> {
        let mut wanted = RequestedEndpoint::default();
        for (name, value) in given {
            let flag = FLAGS.iter().find(|flag| flag.name == *name).unwrap();
            (flag.apply)(&mut wanted, value)?;
        }
        wanted.bind(kind, "there")
    }

    fn opts(given: &[(&str, &str)]) -> Value {
        let mut opts = bind(Protocol::Https, given).unwrap().1.opts;
        opts.as_object_mut().unwrap().remove("URL");
        opts
    }

    #[test]
    fn slashes_and_timeouts_are_options() {
        let given = [
            ("merge-slashes", "false"),
            ("timeout", "idle=1h"),
            ("timeout", "first_byte=90s"),
        ];
        let expected =
            json!({"MergeSlashes": false, "Timeouts": {"idle": "1h", "first_byte": "90s"}});
        assert_eq!(opts(&given), expected);
        for wrong in ["idle", "first=90s", ""] {
            assert!(
                bind(Protocol::Https, &[("timeout", wrong)]).is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn names_are_unique_and_every_flag_reaches_something() {
        let mut names: Vec<_> = FLAGS.iter().map(|flag| flag.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FLAGS.len());
        for flag in FLAGS {
            assert!(
                flag.scope.http || flag.scope.tcp || flag.scope.tls,
                "{}",
                flag.name
            );
            assert!(!flag.doc.ends_with('.'), "{}", flag.doc);
        }
    }

    #[test]
    fn options_are_what_servers_read() {
        assert_eq!(
            opts(&[("basic-auth", "u:p:w"), ("basic-auth", "v:x")]),
            json!({"BasicAuth": {"credentials": [
                {"username": "u", "cleartext_password": "p:w"},
                {"username": "v", "cleartext_password": "x"},
            ]}})
        );
        assert_eq!(
            opts(&[
                ("oauth", "github"),
                ("oauth-scope", "s"),
                ("compression", ""),
                ("proxy-proto", "2")
            ]),
            json!({
                "OAuth": {"provider": "github", "scopes": ["s"]},
                "Compression": {},
                "ProxyProto": 2,
            })
        );
        assert_eq!(
            opts(&[("compression", "false"), ("proxy-proto", "0")]),
            json!({})
        );
        let every: Vec<(&str, &str)> = FLAGS
            .iter()
            .filter(|flag| !["url", "scheme"].contains(&flag.name))
            .map(|flag| {
                let value = match flag.name {
                    "basic-auth" => "a:b",
                    "circuit-breaker" => "0.5",
                    "timeout" => "idle=1h",
                    "proxy-proto" => "1",
                    "upstream-protocol" => "http2",
                    _ if flag.given == Given::Switch => "true",
                    _ => "x",
                };
                (flag.name, value)
            })
            .collect();
        let (_, request) = bind(Protocol::Https, &every).unwrap();
        let read = request.options().unwrap();
        assert!(read.oauth.is_some() && read.oidc.is_some() && read.mutual_tls_ca.is_some());
        assert_eq!(read.circuit_breaker.unwrap().error_threshold, 0.5);
        assert_eq!(request.forwards_proto, "http2");
        assert_eq!(request.extra.bindings, ["x"]);
        assert!(request.extra.pooling_enabled && read.timeouts.idle == "1h");
    }

    #[test]
    fn http_means_https_unless_something_says_otherwise() {
        let proto =
            |kind, given: &[(&str, &str)]| bind(kind, given).map(|(proto, _)| proto.as_str());
        assert_eq!(proto(Protocol::Http, &[]), Ok("https"));
        assert_eq!(proto(Protocol::Http, &[("scheme", "http")]), Ok("http"));
        assert_eq!(
            proto(Protocol::Http, &[("url", "http://a.test")]),
            Ok("http")
        );
        assert_eq!(proto(Protocol::Http, &[("url", "http://")]), Ok("http"));
        assert_eq!(opts(&[("url", "https://")]), json!({}));
        assert_eq!(proto(Protocol::Http, &[("url", "a.test")]), Ok("https"));
        assert_eq!(
            proto(Protocol::Tcp, &[("url", "tcp://a.test:1")]),
            Ok("tcp")
        );
        assert!(proto(Protocol::Tcp, &[("url", "https://a.test")]).is_err());
        assert!(proto(Protocol::Tls, &[("url", "tcp://a.test:1")]).is_err());
        assert!(proto(Protocol::Http, &[("scheme", "gopher")]).is_err());
        assert!(bind(Protocol::Http, &[("basic-auth", "u")]).is_err());
    }
}
