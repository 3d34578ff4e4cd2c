//! The difference between two snapshots.

use std::fmt;
use std::sync::Arc;

use culvert_tls::acme::Challenge;

use crate::endpoint::{Endpoint, ForwardRights};
use crate::operators::Operators;
use crate::snapshot::{NamedCertificate, Snapshot};

/// The changes from one snapshot to the next.
#[derive(Default)]
pub struct Change {
    /// Endpoints that are new, or replace the one with their ID.
    pub put: Vec<Arc<Endpoint>>,
    /// The IDs of removed endpoints.
    pub removed: Vec<String>,
    /// All challenges, if they change.
    pub challenges: Option<Vec<Challenge>>,
    /// All Kubernetes operators, if they change.
    pub operators: Option<Operators>,
    /// The rights to forward to internal endpoints of other owners, if they change.
    pub forward_rights: Option<Arc<dyn ForwardRights>>,
    /// All certificates and fallback certificates, if they change.
    pub certificates: Option<(Vec<NamedCertificate>, Vec<NamedCertificate>)>,
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the certificates, whose keys no log may see.
        f.debug_struct("Change")
            .field("put", &self.put)
            .field("removed", &self.removed)
            .finish_non_exhaustive()
    }
}

impl Change {
    /// Adds an endpoint, or replaces the one with its ID.
    pub fn put(&mut self, endpoint: impl Into<Arc<Endpoint>>) {
        self.put.push(endpoint.into());
    }

    /// Removes the endpoint with this id, if there is one.
    pub fn remove(&mut self, id: String) {
        self.removed.push(id);
    }

    /// Replaces all challenges.
    pub fn challenges(&mut self, challenges: Vec<Challenge>) {
        self.challenges = Some(challenges);
    }

    /// Replaces all Kubernetes operators.
    pub fn operators(&mut self, operators: Operators) {
        self.operators = Some(operators);
    }

    /// Replaces the rights to forward to internal endpoints of other owners.
    pub fn forward_rights(&mut self, rights: Arc<dyn ForwardRights>) {
        self.forward_rights = Some(rights);
    }

    /// Replaces all certificates by those of a snapshot.
    pub fn certificates_of(&mut self, snapshot: Snapshot) {
        self.certificates = Some((snapshot.certificates, snapshot.fallback));
    }

    /// Whether it replaces the Kubernetes operators.
    pub fn has_operators(&self) -> bool {
        self.operators.is_some()
    }

    /// The IDs of the endpoints that it changes.
    pub fn ids(&self) -> impl Iterator<Item = &String> {
        let put = self.put.iter().map(|endpoint| &endpoint.id);
        put.chain(&self.removed)
    }

    /// The number of endpoints that it changes.
    pub fn len(&self) -> usize {
        self.put.len() + self.removed.len()
    }

    /// Whether it changes no endpoint.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
