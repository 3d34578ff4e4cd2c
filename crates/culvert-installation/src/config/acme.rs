//! Managed certificates.

use std::time::Duration;

use culvert_base::Secret;
use culvert_base::net::HostName;
use culvert_tls::acme::ChallengeKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Invalid;
use super::acme_dns::AcmeDnsSettings;
use super::span::Span;

/// Managed certificates.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Acme {
    /// Directory URL (RFC 8555) of the CA for managed certificates, such as
    /// `https://acme-v02.api.letsencrypt.org/directory`. Setting it accepts the CA's terms of
    /// service. Empty: managed domains report that no CA is configured. A CA at a private address
    /// must be in `destinations.allow_networks`.
    pub directory_url: String,
    /// Contact of the operator for the CA: an e-mail address or a `mailto:` URL.
    pub contact: String,
    /// PEM file of additional certificate authorities to verify the directory server.
    pub extra_ca_file: String,
    /// Challenges for names without a wildcard, in order of preference: `http-01` on port 80,
    /// `tls-alpn-01` on port 443. After a failure the next challenge is tried.
    pub challenges: Vec<String>,
    /// Program that writes TXT records for wildcards (dns-01). It runs without a shell and gets
    /// three arguments, `add` or `remove`, the name and the value, which are also in
    /// `CULVERT_DNS_ACTION`, `CULVERT_DNS_NAME` and `CULVERT_DNS_VALUE`. It must exit with 0 once
    /// the record is visible.
    pub dns_hook: String,
    /// Timeout of the program, at most `3m`.
    pub dns_hook_timeout: Span,
    /// First retry delay. The delay doubles after each failure, up to 1 h. Errors that need
    /// action by the domain owner start at 5× this delay, capped at 6 h.
    pub retry_after: Span,
    /// Whether `edge.domain` and its subdomains get a public certificate, with a wildcard. Requires
    /// `acme.dns.provider` or `acme.dns_hook`. The edge, the agent ingress and the API present it.
    /// Until the CA has issued it, they present certificates of the installation's own CA.
    pub domain_certificate: bool,
    /// Other public names of this installation that get a certificate, such as those of the API or
    /// the agent ingress outside of `edge.domain`.
    pub names: Vec<String>,
    /// External account that the account at the CA is bound to (RFC 8555 7.3.4).
    pub external_account: ExternalAccountSettings,
    /// Built-in DNS providers, which write TXT records for wildcards (dns-01).
    pub dns: AcmeDnsSettings,
}

/// An external account at the CA.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ExternalAccountSettings {
    /// ID of the key that the CA gave out; empty if the CA requires none.
    pub key_id: String,
    /// The key, base64url. Secret: set it by environment variable.
    pub hmac_key: String,
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
            domain_certificate: false,
            names: Vec::new(),
            external_account: ExternalAccountSettings::default(),
            dns: AcmeDnsSettings::default(),
        }
    }
}

impl Acme {
    /// The installation's own public names. Each list becomes one certificate.
    pub fn own_names(&self, domain: &str) -> Result<Vec<Vec<HostName>>, Invalid> {
        let parse = |name: &str| {
            HostName::parse(name).map_err(|error| {
                Invalid(format!(
                    "`acme.names` contains `{name}`, which is not a valid host name: {error}"
                ))
            })
        };
        let mut own = Vec::new();
        if self.domain_certificate {
            own.push(vec![parse(domain)?, parse(&format!("*.{domain}"))?]);
        }
        for name in &self.names {
            let name = parse(name)?;
            if name.is_wildcard() {
                let text = format!("`acme.names` contains `{name}`; wildcards are not supported");
                return Err(Invalid(text));
            }
            own.push(vec![name]);
        }
        own.dedup();
        Ok(own)
    }

    /// The secrets, to be hidden.
    pub(super) fn secrets(&mut self) -> impl Iterator<Item = &mut String> {
        let hmac_key = &mut self.external_account.hmac_key;
        self.dns.secrets().into_iter().chain([hmac_key])
    }

    /// The external account, if there is one: the ID of its key, and the key.
    pub fn external_account(&self) -> Option<(String, Secret)> {
        let ExternalAccountSettings { key_id, hmac_key } = &self.external_account;
        // Authorities give keys out with and without padding.
        let hmac_key = hmac_key.trim().trim_end_matches('=').to_owned();
        (!key_id.is_empty()).then(|| (key_id.clone(), Secret::new(hmac_key)))
    }

    /// The challenge types. Only types that a listener responds to are valid here.
    pub fn challenges(&self) -> Result<Vec<ChallengeKind>, Invalid> {
        let kind = |name: &String| match ChallengeKind::parse(name.trim()) {
            Some(kind) if kind != ChallengeKind::Dns01 => Ok(kind),
            _ => Err(Invalid(format!(
                "`acme.challenges` contains `{name}`; valid values are `http-01` and `tls-alpn-01`"
            ))),
        };
        self.challenges.iter().map(kind).collect()
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        let is_https = |text: &str| url::Url::parse(text).is_ok_and(|url| url.scheme() == "https");
        if !self.directory_url.is_empty() && !is_https(&self.directory_url) {
            return Err(Invalid(
                "`acme.directory_url` must be an `https://` URL".into(),
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
        self.dns.check()?;
        if !self.dns.provider.is_empty() && !self.dns_hook.is_empty() {
            return Err(Invalid(
                "`acme.dns.provider` and `acme.dns_hook` must not be set together".into(),
            ));
        }
        if self.external_account.key_id.is_empty() != self.external_account.hmac_key.is_empty() {
            return Err(Invalid(
                "`acme.external_account.key_id` and `acme.external_account.hmac_key` must be set together"
                    .into(),
            ));
        }
        let needs = |key: &str, what: &str| Err(Invalid(format!("`{key}` requires {what}")));
        if self.directory_url.is_empty() {
            for (key, is_set) in [
                ("acme.domain_certificate", self.domain_certificate),
                ("acme.names", !self.names.is_empty()),
            ] {
                if is_set {
                    return needs(key, "`acme.directory_url`");
                }
            }
        }
        if self.domain_certificate && self.dns.provider.is_empty() && self.dns_hook.is_empty() {
            return needs(
                "acme.domain_certificate",
                "`acme.dns.provider` or `acme.dns_hook`",
            );
        }
        self.challenges().map(drop)
    }
}
