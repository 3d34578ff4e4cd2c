//! How certificates are obtained: the client of an authority, and what it needs.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::net::HostName;
use culvert_base::{BoxFuture, Meter, Secret};
pub use culvert_tls::acme::check::Checks;
use culvert_tls::acme::{ChallengeKind, Failure, Order as Placed, RenewalWindow};

/// A client of a certificate authority. Each method is one step and can be repeated.
pub trait Issuer: Debug + Send + Sync {
    /// URL of the authority's directory, which identifies the authority.
    fn directory(&self) -> &str;

    /// Whether DNS records can be written.
    fn writes_records(&self) -> bool;

    /// The external account that a new account is bound to, if the settings name one.
    fn external_account(&self) -> Option<&str>;

    /// Creates the key of a new account. With an external account, also registers the account at the authority.
    fn new_account(&self) -> BoxFuture<'_, Result<Secret, Failure>>;

    /// Orders a certificate for these names, which replaces the certificate `replaces` (PEM) if there is one.
    fn order<'a>(
        &'a self,
        key: &'a Secret,
        names: &'a [HostName],
        replaces: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Placed, Failure>>;

    /// When the authority suggests to renew a certificate (PEM). `None` if it makes no suggestions.
    fn renewal_window<'a>(
        &'a self,
        key: &'a Secret,
        chain_pem: &'a str,
    ) -> BoxFuture<'a, Result<Option<RenewalWindow>, Failure>>;

    /// Reads the state of an order.
    fn order_state<'a>(
        &'a self,
        key: &'a Secret,
        url: &'a str,
    ) -> BoxFuture<'a, Result<Placed, Failure>>;

    /// Reports that the responses to challenges of this kind are in place.
    fn ready<'a>(
        &'a self,
        key: &'a Secret,
        url: &'a str,
        kind: ChallengeKind,
    ) -> BoxFuture<'a, Result<(), Failure>>;

    /// Requests the certificate of an order that is ready.
    fn finalize<'a>(
        &'a self,
        key: &'a Secret,
        url: &'a str,
        csr_der: &'a [u8],
    ) -> BoxFuture<'a, Result<(), Failure>>;

    /// The certificate chain of a valid order, PEM.
    fn certificate<'a>(
        &'a self,
        key: &'a Secret,
        url: &'a str,
    ) -> BoxFuture<'a, Result<String, Failure>>;

    /// Adds or removes a TXT record.
    fn record<'a>(
        &'a self,
        record: Record,
        name: &'a str,
        value: &'a str,
    ) -> BoxFuture<'a, Result<(), Failure>>;
}

/// A change to a TXT record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Adds the record.
    Add,
    /// Removes the record.
    Remove,
}

/// How this process obtains certificates.
#[derive(Debug)]
pub struct Certificates {
    /// The authority. Without one, every attempt fails with that message.
    pub issuer: Option<Arc<dyn Issuer>>,
    /// The public names of the installation itself, such as the platform domain with its wildcard. Each list becomes
    /// one certificate.
    pub own_names: Vec<Vec<HostName>>,
    /// Name of this node in leases.
    pub node: String,
    /// The supported challenges, the preferred one first.
    pub challenges: Vec<ChallengeKind>,
    /// Time after a commit until the edge of every node serves a challenge response.
    pub spread: Duration,
    /// Delay of the retry after a first failure.
    pub retry_after: Duration,
}

/// Metrics of managed certificates.
#[derive(Debug, Default)]
pub struct CertificateMeters {
    /// Certificates issued, including renewals.
    pub issued: Meter,
    /// Failed attempts.
    pub failed: Meter,
}

impl Certificates {
    /// URL of the authority's directory; empty without an authority.
    pub fn directory(&self) -> &str {
        self.issuer.as_ref().map_or("", |issuer| issuer.directory())
    }
}
