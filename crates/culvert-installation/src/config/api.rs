//! The management API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Invalid;

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
    /// Maximum number of requests per account in a rolling minute; 0 for no limit. With a limit,
    /// responses have the fields `RateLimit` and `RateLimit-Policy`.
    pub rate_limit_per_minute: u32,
    /// Maximum number of concurrent connections; more wait to be accepted.
    pub connections_max: u32,
    /// Maximum number of concurrent connections per source (an IPv4 address or an IPv6 /64), except
    /// for trusted proxies. The same number again waits up to a second, and then gets 503. Without TLS, further
    /// ones get 503 immediately; with TLS they are closed.
    pub connections_per_source_max: u32,
    /// Maximum number of concurrent requests. More wait up to a second, and then get 503.
    pub requests_max: u32,
    /// Maximum number of concurrent requests per owner of API keys. More wait up to a second, and
    /// then get 503.
    pub requests_per_owner_max: u32,
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
            connections_max: 1_024,
            connections_per_source_max: 256,
            requests_max: 256,
            requests_per_owner_max: 32,
            trusted_proxies: Vec::new(),
            tls: ApiTls::default(),
        }
    }
}

impl Api {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        for (key, limit) in [
            ("connections_max", self.connections_max),
            (
                "connections_per_source_max",
                self.connections_per_source_max,
            ),
            ("requests_max", self.requests_max),
            ("requests_per_owner_max", self.requests_per_owner_max),
        ] {
            if !(1..=1_000_000).contains(&limit) {
                return Err(Invalid(format!(
                    "`api.{key}` must be from 1 to 1000000, not {limit}"
                )));
            }
        }
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
