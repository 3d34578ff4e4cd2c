//! What an endpoint in maintenance responds with, and who gets past that.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_base::{Digest, IpSet, Secret};

/// The maintenance of an endpoint.
#[derive(Clone, PartialEq, Eq)]
pub struct Maintenance {
    /// Status of the response, from 400 to 599.
    pub status: u16,
    /// Body of the response and its media type; `None` for the page of the edge.
    pub page: Option<(Arc<str>, String)>,
    /// When clients may try again.
    pub retry_after: Duration,
    /// The addresses whose requests go on.
    pub admitted: IpSet,
    /// The digest of what other clients say whose requests go on.
    secret: Option<Digest>,
}

impl Maintenance {
    /// One with the page of the edge, without exceptions.
    pub fn new(status: u16, retry_after: Duration) -> Self {
        Self {
            status,
            page: None,
            retry_after,
            admitted: IpSet::default(),
            secret: None,
        }
    }

    /// The same for all but those who know a secret.
    #[must_use]
    pub fn with_secret(self, secret: &Secret) -> Self {
        Self {
            secret: Some(digest(secret.reveal())),
            ..self
        }
    }

    /// Whether the requests of a client at this address go on, who says this.
    pub fn lets_pass<'x>(&self, client: IpAddr, mut said: impl Iterator<Item = &'x str>) -> bool {
        self.admitted.contains(client)
            || self
                .secret
                .is_some_and(|secret| said.any(|text| digest(text) == secret))
    }
}

impl fmt::Debug for Maintenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Maintenance")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// Digests are compared in constant time.
fn digest(text: &str) -> Digest {
    Digest::of(b"culvert maintenance", text)
}
