//! Settings of the built-in DNS providers for challenges.

use std::net::SocketAddr;
use std::time::Duration;

use culvert_aws::Keys;
use culvert_base::Secret;
use culvert_base::net::HostName;
use culvert_dns::{ALGORITHMS, AcmeDns, Cloudflare, Desec, Provider, Rfc2136, Route53};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Invalid;
use super::span::Span;

/// Names of the providers.
const PROVIDERS: [&str; 5] = ["rfc2136", "cloudflare", "route53", "desec", "acme-dns"];
/// An attempt to get a certificate takes at most four minutes.
const PROPAGATION_TIMEOUT_MAX: Duration = Duration::from_secs(180);

/// Built-in DNS providers.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AcmeDnsSettings {
    /// Provider that writes the TXT records: `rfc2136`, `cloudflare`, `route53`, `desec` or
    /// `acme-dns`; empty for none. An alias (CNAME) of `_acme-challenge` is followed.
    pub provider: String,
    /// Resolvers to look up names with, as `address:port`. Empty: those of the system.
    pub resolvers: Vec<String>,
    /// Name servers that must have a record before the CA is asked, as `address:port`. Empty: those
    /// that the zone names. Servers at private addresses must be in `destinations.allow_networks`
    /// or in this list.
    pub nameservers: Vec<String>,
    /// How long to wait until the name servers have a record, at most `3m`. `0s` asks the CA
    /// immediately.
    pub propagation_timeout: Span,
    /// Dynamic updates of a name server (RFC 2136), such as BIND, Knot or PowerDNS.
    pub rfc2136: Rfc2136Settings,
    /// Cloudflare.
    pub cloudflare: CloudflareSettings,
    /// Amazon Route 53.
    pub route53: Route53Settings,
    /// deSEC.
    pub desec: DesecSettings,
    /// An acme-dns server.
    pub acme_dns: AcmeDnsServerSettings,
}

impl Default for AcmeDnsSettings {
    fn default() -> Self {
        Self {
            provider: String::new(),
            resolvers: Vec::new(),
            nameservers: Vec::new(),
            propagation_timeout: Span(Duration::from_secs(120)),
            rfc2136: Rfc2136Settings::default(),
            cloudflare: CloudflareSettings::default(),
            route53: Route53Settings::default(),
            desec: DesecSettings::default(),
            acme_dns: AcmeDnsServerSettings::default(),
        }
    }
}

/// A name server that accepts dynamic updates.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rfc2136Settings {
    /// Address of the primary name server, as `address:port`. Updates go over TCP.
    pub server: String,
    /// Zone to update. Empty: looked up at the server.
    pub zone: String,
    /// Name of the TSIG key.
    pub key_name: String,
    /// Algorithm of the key: `hmac-sha256`, `hmac-sha384` or `hmac-sha512`.
    pub key_algorithm: String,
    /// The key, base64. Secret: set it by environment variable.
    pub key_secret: String,
}

impl Default for Rfc2136Settings {
    fn default() -> Self {
        Self {
            server: String::new(),
            zone: String::new(),
            key_name: String::new(),
            key_algorithm: ALGORITHMS[0].to_owned(),
            key_secret: String::new(),
        }
    }
}

/// An account at Cloudflare.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CloudflareSettings {
    /// API token with the permission `DNS:Edit` for the zone. Secret: set it by environment
    /// variable.
    pub api_token: String,
    /// Base URL of the API; empty for the public one.
    pub api_url: String,
}

/// An account at Amazon.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Route53Settings {
    /// ID of the access key.
    pub access_key_id: String,
    /// The access key. Secret: set it by environment variable.
    pub secret_access_key: String,
    /// Session token of a temporary key. Secret: set it by environment variable.
    pub session_token: String,
    /// ID of the hosted zone. Empty: looked up, which needs `route53:ListHostedZonesByName`.
    pub hosted_zone_id: String,
    /// Endpoint URL; empty for the public one.
    pub endpoint_url: String,
}

/// An account at deSEC.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DesecSettings {
    /// API token. Secret: set it by environment variable.
    pub token: String,
    /// Base URL of the API; empty for the public one.
    pub api_url: String,
}

/// An account at an acme-dns server.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AcmeDnsServerSettings {
    /// Base URL of the server; https only.
    pub server_url: String,
    /// User name of the account.
    pub username: String,
    /// Password of the account. Secret: set it by environment variable.
    pub password: String,
    /// Subdomain of the account.
    pub subdomain: String,
    /// Full domain of the account. `_acme-challenge` must be an alias (CNAME) of it.
    pub full_domain: String,
}

impl AcmeDnsSettings {
    /// The secrets, to be hidden.
    pub(super) fn secrets(&mut self) -> [&mut String; 6] {
        [
            &mut self.rfc2136.key_secret,
            &mut self.cloudflare.api_token,
            &mut self.route53.secret_access_key,
            &mut self.route53.session_token,
            &mut self.desec.token,
            &mut self.acme_dns.password,
        ]
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        if self.propagation_timeout.0 > PROPAGATION_TIMEOUT_MAX {
            return Err(Invalid(
                "`acme.dns.propagation_timeout` must be at most `3m`".into(),
            ));
        }
        self.resolvers()?;
        self.nameservers()?;
        self.provider().map(drop)
    }

    /// Resolvers to look up names with.
    pub fn resolvers(&self) -> Result<Vec<SocketAddr>, Invalid> {
        addresses("acme.dns.resolvers", &self.resolvers)
    }

    /// Name servers that must have a record.
    pub fn nameservers(&self) -> Result<Vec<SocketAddr>, Invalid> {
        addresses("acme.dns.nameservers", &self.nameservers)
    }

    /// The provider with its credentials, if there is one.
    pub fn provider(&self) -> Result<Option<Provider>, Invalid> {
        let provider = match self.provider.as_str() {
            "" => return Ok(None),
            "rfc2136" => Provider::Rfc2136(self.rfc2136()?),
            "cloudflare" => Provider::Cloudflare(Cloudflare {
                api_url: base(
                    "cloudflare.api_url",
                    &self.cloudflare.api_url,
                    Cloudflare::API_URL,
                )?,
                api_token: secret("cloudflare.api_token", &self.cloudflare.api_token)?,
            }),
            "route53" => {
                let of = &self.route53;
                let session = Some(&of.session_token).filter(|token| !token.is_empty());
                let zone = Some(&of.hosted_zone_id).filter(|zone| !zone.is_empty());
                Provider::Route53(Route53 {
                    endpoint_url: base(
                        "route53.endpoint_url",
                        &of.endpoint_url,
                        Route53::ENDPOINT_URL,
                    )?,
                    keys: Keys {
                        id: required("route53.access_key_id", &of.access_key_id)?,
                        secret: secret("route53.secret_access_key", &of.secret_access_key)?,
                        session: session.map(|token| Secret::new(token.clone())),
                    },
                    hosted_zone_id: zone.cloned(),
                })
            }
            "desec" => Provider::Desec(Desec {
                api_url: base("desec.api_url", &self.desec.api_url, Desec::API_URL)?,
                token: secret("desec.token", &self.desec.token)?,
            }),
            "acme-dns" => {
                let of = &self.acme_dns;
                let url = required("acme_dns.server_url", &of.server_url)?;
                Provider::AcmeDns(AcmeDns {
                    server_url: base("acme_dns.server_url", &url, "")?,
                    username: secret("acme_dns.username", &of.username)?,
                    password: secret("acme_dns.password", &of.password)?,
                    subdomain: required("acme_dns.subdomain", &of.subdomain)?,
                    full_domain: required("acme_dns.full_domain", &of.full_domain)?,
                })
            }
            other => {
                return Err(Invalid(format!(
                    "`acme.dns.provider` must be one of `{}`, not `{other}`",
                    PROVIDERS.join("`, `")
                )));
            }
        };
        Ok(Some(provider))
    }

    fn rfc2136(&self) -> Result<Rfc2136, Invalid> {
        let of = &self.rfc2136;
        let server = required("rfc2136.server", &of.server)?;
        let server = address("acme.dns.rfc2136.server", &server)?;
        let zone = match of.zone.trim_end_matches('.') {
            "" => None,
            zone => Some(HostName::parse(zone).map_err(|error| {
                Invalid(format!(
                    "`acme.dns.rfc2136.zone` is not a valid name: {error}"
                ))
            })?),
        };
        let key_name = required("rfc2136.key_name", &of.key_name)?;
        let key = secret("rfc2136.key_secret", &of.key_secret)?;
        let zone = zone.map(|zone| zone.to_string());
        Rfc2136::new(server, zone, &key_name, &of.key_algorithm, &key).map_err(|error| {
            Invalid(format!(
                "`acme.dns.rfc2136.key_algorithm` or `acme.dns.rfc2136.key_secret`: {error}"
            ))
        })
    }
}

fn required(key: &str, value: &str) -> Result<String, Invalid> {
    match value.trim() {
        "" => Err(Invalid(format!(
            "`acme.dns.{key}` is required by `acme.dns.provider`"
        ))),
        value => Ok(value.to_owned()),
    }
}

fn secret(key: &str, value: &str) -> Result<Secret, Invalid> {
    required(key, value).map(Secret::new)
}

/// A base URL without a slash at the end.
fn base(key: &str, value: &str, otherwise: &str) -> Result<String, Invalid> {
    let value = match value {
        "" => otherwise,
        value => value,
    };
    let is_https = url::Url::parse(value).is_ok_and(|url| {
        url.scheme() == "https" && url.query().is_none() && url.fragment().is_none()
    });
    if !is_https {
        return Err(Invalid(format!(
            "`acme.dns.{key}` must be an `https://` URL"
        )));
    }
    Ok(value.trim_end_matches('/').to_owned())
}

fn address(key: &str, text: &str) -> Result<SocketAddr, Invalid> {
    text.trim().parse().map_err(|_| {
        Invalid(format!(
            "`{key}` contains `{text}`, which is not an address and port such as `192.0.2.1:53`"
        ))
    })
}

fn addresses(key: &str, list: &[String]) -> Result<Vec<SocketAddr>, Invalid> {
    list.iter().map(|text| address(key, text)).collect()
}
