//! Writes the TXT records of DNS challenges at a DNS provider, and waits until the zone's own servers have them.
//!
//! A challenge name may be an alias (CNAME) of another name, also in another zone; the record is written there. HTTP
//! requests go through the caller's client, which guards addresses. A provider never gets another name than the end of
//! the chain of aliases.
//!
//! Not here: which names get records (`culvert-control`), and the hook program (`culvert-tls`).

mod acme_dns;
mod api;
mod change;
mod cloudflare;
mod desec;
mod error;
mod lookup;
mod rfc2136;
mod route53;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use culvert_base::Clock;
use culvert_tls::acme::Fetch;
use tokio::sync::Mutex;

pub use acme_dns::AcmeDns;
pub use cloudflare::Cloudflare;
pub use desec::Desec;
pub use error::DnsError;
pub use lookup::{Addresses, Lookup, LookupSettings, MayAsk};
pub use rfc2136::{ALGORITHMS, Rfc2136};
pub use route53::Route53;

use api::Api;
use change::Change;

/// A DNS provider with its credentials.
#[derive(Debug)]
pub enum Provider {
    /// Dynamic updates of a name server (RFC 2136).
    Rfc2136(Rfc2136),
    /// Cloudflare.
    Cloudflare(Cloudflare),
    /// Amazon Route 53.
    Route53(Route53),
    /// deSEC.
    Desec(Desec),
    /// An acme-dns server.
    AcmeDns(AcmeDns),
}

/// Writes records at one provider.
#[derive(Debug)]
pub struct DnsWriter {
    provider: Provider,
    api: Api,
    lookup: Lookup,
    /// Some providers replace all records of a name, so one change runs at a time.
    changing: Mutex<()>,
}

impl DnsWriter {
    /// A writer that sends HTTP requests with `fetch`. Sends nothing yet.
    ///
    /// # Errors
    /// The system has no usable resolver configuration.
    pub fn new(
        provider: Provider,
        settings: LookupSettings,
        fetch: Arc<dyn Fetch>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, DnsError> {
        Ok(Self {
            provider,
            api: Api::new(fetch, clock),
            lookup: Lookup::new(settings)?,
            changing: Mutex::new(()),
        })
    }

    /// The provider's name in settings.
    pub fn provider(&self) -> &'static str {
        match &self.provider {
            Provider::Rfc2136(_) => "rfc2136",
            Provider::Cloudflare(_) => "cloudflare",
            Provider::Route53(_) => "route53",
            Provider::Desec(_) => "desec",
            Provider::AcmeDns(_) => "acme-dns",
        }
    }

    /// Adds a TXT record, and waits until the zone's servers have it. Adding the same record again is no error.
    ///
    /// # Errors
    /// Names the record and has the provider's message.
    pub async fn add(&self, name: &str, value: &str) -> Result<(), DnsError> {
        let target = self.lookup.follow(name).await?;
        let described = describe(name, &target);
        self.change(&target, value, Change::Add)
            .await
            .map_err(|error| error.about(&format!("cannot write the TXT record {described}")))?;
        let shown = self.lookup.wait_for(&target, value).await;
        shown.map_err(|error| error.about(&format!("the TXT record {described}")))
    }

    /// Removes a TXT record. A record that does not exist is no error.
    ///
    /// # Errors
    /// Names the record and has the provider's message.
    pub async fn remove(&self, name: &str, value: &str) -> Result<(), DnsError> {
        let target = self.lookup.follow(name).await?;
        let described = describe(name, &target);
        self.change(&target, value, Change::Remove)
            .await
            .map_err(|error| error.about(&format!("cannot remove the TXT record {described}")))
    }

    /// Checks the credentials, and that the provider has the zone of a name. Changes nothing. Returns what it found.
    ///
    /// # Errors
    /// Names the record that could not be written, and has the provider's message.
    pub async fn check(&self, name: &str) -> Result<String, DnsError> {
        let target = self.lookup.follow(name).await?;
        let (api, lookup) = (&self.api, &self.lookup);
        let found = match &self.provider {
            Provider::Rfc2136(it) => it.check(&target, api, lookup).await,
            Provider::Cloudflare(it) => it.check(&target, api).await,
            Provider::Route53(it) => it.check(&target, api).await,
            Provider::Desec(it) => it.check(&target, api).await,
            Provider::AcmeDns(it) => it.check(&target),
        };
        let described = describe(name, &target);
        let found = found
            .map_err(|error| error.about(&format!("cannot write the TXT record {described}")))?;
        let servers = self.lookup.servers(&target).await?;
        Ok(format!("{found}; {servers}"))
    }

    async fn change(&self, name: &str, value: &str, change: Change) -> Result<(), DnsError> {
        let _one = self.changing.lock().await;
        let (api, lookup) = (&self.api, &self.lookup);
        match &self.provider {
            Provider::Rfc2136(it) => it.change(name, value, change, api, lookup).await,
            Provider::Cloudflare(it) => it.change(name, value, change, api).await,
            Provider::Route53(it) => it.change(name, value, change, api).await,
            Provider::Desec(it) => it.change(name, value, change, api).await,
            Provider::AcmeDns(it) => it.change(name, value, change, api).await,
        }
    }
}

/// A name, and the name that it is an alias of.
fn describe(name: &str, target: &str) -> String {
    if name == target {
        format!("`{name}`")
    } else {
        format!("`{target}` (`{name}` is its alias)")
    }
}
