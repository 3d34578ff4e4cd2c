//! The input of the edge: endpoints, certificates and restrictions of one moment.

use std::fmt;
use std::sync::Arc;

use culvert_base::net::HostName;
use culvert_login::Logins;
use culvert_policy::Policy;
use culvert_policy::host::EndpointInfo;
use culvert_tls::acme::Challenge;
use rustls::sign::CertifiedKey;

use crate::change::Change;
use crate::endpoint::{Endpoint, ForwardRights, Restriction};
use crate::operators::Operators;

/// A certificate with its key, and the names for which it is presented.
pub type NamedCertificate = (Vec<HostName>, Arc<CertifiedKey>);

/// Endpoints, certificates and restrictions of one moment.
#[derive(Clone, Default)]
pub struct Snapshot {
    /// Its endpoints, in the order in which they were added.
    pub endpoints: Vec<Arc<Endpoint>>,
    /// Its restrictions; of two for one account the later one counts.
    pub restrictions: Vec<Restriction>,
    /// Its certificates; for a name given twice the later one counts.
    pub certificates: Vec<NamedCertificate>,
    /// Certificates for names that have no other.
    pub fallback: Vec<NamedCertificate>,
    /// Its challenges.
    pub challenges: Vec<Challenge>,
    /// The shared state of sign-ins.
    pub logins: Option<Arc<Logins>>,
    /// The Kubernetes operators that may connect.
    pub operators: Operators,
    /// The rights to forward to internal endpoints of other owners. Without them, no policy does.
    pub forward_rights: Option<Arc<dyn ForwardRights>>,
}

impl Snapshot {
    /// Starts an empty snapshot.
    pub fn builder() -> SnapshotBuilder {
        SnapshotBuilder(Self::default())
    }

    /// The number of endpoints.
    pub fn len(&self) -> usize {
        self.endpoints.len()
    }

    /// The policy of an endpoint.
    pub fn policy_of(&self, id: &str) -> Option<&Arc<Policy>> {
        let mut endpoints = self.endpoints.iter();
        endpoints
            .find(|endpoint| endpoint.id == *id)?
            .policy
            .as_ref()
    }

    /// Its restrictions.
    pub fn restrictions(&self) -> &[Restriction] {
        &self.restrictions
    }

    /// Its challenges.
    pub fn challenges(&self) -> &[Challenge] {
        &self.challenges
    }

    /// Whether the policy of one endpoint may forward to an internal one by this host.
    pub fn may_forward(&self, from: &Endpoint, host: &str, to: &Endpoint) -> bool {
        may_forward(self.forward_rights.as_deref(), from.info(), host, to)
    }

    /// Its endpoints.
    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().map(|endpoint| &**endpoint)
    }

    /// The names with a certificate, without those of fallback certificates.
    pub fn certified(&self) -> impl Iterator<Item = &HostName> {
        self.certificates.iter().flat_map(|(names, _)| names)
    }

    /// Whether it has no endpoint.
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the certificates, whose keys no log may see.
        f.debug_struct("Snapshot")
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}

/// Fills a [`Snapshot`].
#[derive(Debug)]
pub struct SnapshotBuilder(Snapshot);

impl SnapshotBuilder {
    /// Adds an endpoint. Several with the same scheme, host and port share the load in turn.
    #[must_use]
    pub fn endpoint(mut self, endpoint: impl Into<Arc<Endpoint>>) -> Self {
        self.0.endpoints.push(endpoint.into());
        self
    }

    /// Adds a certificate with its key, presented for these names. For a name given twice the later
    /// one counts; a wildcard covers names of any depth.
    #[must_use]
    pub fn certificate(
        mut self,
        names: impl IntoIterator<Item = HostName>,
        key: Arc<CertifiedKey>,
    ) -> Self {
        self.0.certificates.push((names.into_iter().collect(), key));
        self
    }

    /// Adds a fallback certificate, for names that have no other in the snapshot or the operator's files.
    #[must_use]
    pub fn fallback_certificate(
        mut self,
        names: impl IntoIterator<Item = HostName>,
        key: Arc<CertifiedKey>,
    ) -> Self {
        self.0.fallback.push((names.into_iter().collect(), key));
        self
    }

    /// Adds the restriction of an account's endpoints; of two for one account the later one counts.
    #[must_use]
    pub fn restriction(mut self, restriction: Restriction) -> Self {
        self.0.restrictions.push(restriction);
        self
    }

    /// Adds a challenge, whose response has precedence over the endpoints of its host.
    #[must_use]
    pub fn challenge(mut self, challenge: Challenge) -> Self {
        self.0.challenges.push(challenge);
        self
    }

    /// Sets the shared state of sign-ins, for users who return to the callback address of all endpoints.
    #[must_use]
    pub fn logins(mut self, logins: Arc<Logins>) -> Self {
        self.0.logins = Some(logins);
        self
    }

    /// Sets the Kubernetes operators that may connect.
    #[must_use]
    pub fn operators(mut self, operators: Operators) -> Self {
        self.0.operators = operators;
        self
    }

    /// Sets the rights to forward to internal endpoints of other owners. Without them, no policy does.
    #[must_use]
    pub fn forward_rights(mut self, rights: Arc<dyn ForwardRights>) -> Self {
        self.0.forward_rights = Some(rights);
        self
    }

    /// The snapshot.
    pub fn build(self) -> Snapshot {
        self.0
    }
}

impl Snapshot {
    /// This snapshot with a change. The time depends on the size of the snapshot; an edge applies a change faster.
    #[must_use]
    pub fn changed(mut self, change: Change) -> Self {
        let put: Vec<&String> = change.put.iter().map(|endpoint| &endpoint.id).collect();
        let stays = |id: &String| !change.removed.contains(id) && !put.contains(&id);
        self.endpoints.retain(|endpoint| stays(&endpoint.id));
        self.endpoints.extend(change.put);
        self.challenges = change.challenges.unwrap_or(self.challenges);
        self.operators = change.operators.unwrap_or(self.operators);
        self.forward_rights = change.forward_rights.or(self.forward_rights);
        if let Some((certificates, fallback)) = change.certificates {
            (self.certificates, self.fallback) = (certificates, fallback);
        }
        self
    }
}

/// Whether the policy of `from` may forward to an internal endpoint: to those of the same owner, and where these
/// rights say so.
#[inline]
pub fn may_forward(
    rights: Option<&dyn ForwardRights>,
    from: EndpointInfo<'_>,
    host: &str,
    to: &Endpoint,
) -> bool {
    let to = to.info();
    from.owner == to.owner || rights.is_some_and(|rights| rights.may_forward(from, host, to))
}
