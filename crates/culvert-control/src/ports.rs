//! What control needs of the planes and does not do itself.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::net::HostName;
use culvert_base::{BoxFuture, Fault, Meter, Secret};
use culvert_edge::{Change, Snapshot};
use culvert_tls::acme::{ChallengeKind, Failure, Order as Placed};

/// Where snapshots go: the edge, wherever it runs.
pub trait EdgePort: Debug + Send + Sync {
    /// Runs on `snapshot` from now on; done when it is live.
    fn publish(&self, snapshot: Snapshot) -> BoxFuture<'_, ()>;

    /// Runs on the snapshot of before with `change` from now on; done when it is live.
    fn apply(&self, change: Change) -> BoxFuture<'_, ()>;
}

/// Gets certificates from an authority: its client, wherever it runs. Each method is one step, and
/// can be taken again.
pub trait Issuer: Debug + Send + Sync {
    /// Where the authority's directory is; it stands for the authority.
    fn directory(&self) -> &str;

    /// Whether records can be written into the DNS.
    fn writes_records(&self) -> bool;

    /// A new key for an account at the authority.
    fn new_account_key(&self) -> Result<Secret, Fault>;

    /// Orders a certificate for a name.
    fn place<'a>(
        &'a self,
        key: &'a Secret,
        name: &'a HostName,
    ) -> BoxFuture<'a, Result<Placed, Failure>>;

    /// Looks at an order.
    fn look<'a>(&'a self, key: &'a Secret, url: &'a str) -> BoxFuture<'a, Result<Placed, Failure>>;

    /// Says that what challenges of this kind look for is there.
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

    /// The chain of an order that is valid, PEM.
    fn certificate<'a>(
        &'a self,
        key: &'a Secret,
        url: &'a str,
    ) -> BoxFuture<'a, Result<String, Failure>>;

    /// Has a TXT record in the DNS, or not there.
    fn record<'a>(
        &'a self,
        record: Record,
        name: &'a str,
        value: &'a str,
    ) -> BoxFuture<'a, Result<(), Failure>>;
}

/// What is done to a TXT record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// It is to be there.
    Add,
    /// It is not needed any more.
    Remove,
}

/// How this process gets certificates.
#[derive(Debug)]
pub struct Certificates {
    /// The authority; without one every attempt says so.
    pub issuer: Option<Arc<dyn Issuer>>,
    /// Name of this node in leases.
    pub node: String,
    /// What the edge can be seen by, the preferred one first.
    pub challenges: Vec<ChallengeKind>,
    /// How long after its commit an answer is shown by every node's edge.
    pub spread: Duration,
    /// How long after a first failure it is tried again.
    pub retry_after: Duration,
}

/// What is counted of managed certificates.
#[derive(Debug, Default)]
pub struct CertificateMeters {
    /// Certificates that were issued, first ones and renewals.
    pub issued: Meter,
    /// Attempts that failed.
    pub failed: Meter,
}

impl Certificates {
    pub(crate) fn directory(&self) -> &str {
        self.issuer.as_ref().map_or("", |issuer| issuer.directory())
    }
}
