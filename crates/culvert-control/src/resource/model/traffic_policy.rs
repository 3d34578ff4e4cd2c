//! Stored form of a traffic policy.

use culvert_store::{OnDelete, Ref};
use serde::{Deserialize, Serialize};

/// The stored form.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct StoredPolicy {
    /// As it is shown.
    pub(crate) shown: String,
    /// The whole text, if secrets are missing in what is shown.
    #[serde(default)]
    pub(crate) sealed: Option<String>,
    /// Ids of the objects that it names, each once: IP policies, certificate authorities and
    /// secrets. None of them can be deleted meanwhile.
    #[serde(default)]
    pub(crate) names: Vec<String>,
}

impl StoredPolicy {
    /// What the store enforces: nothing that it names can be deleted.
    pub(crate) fn refs(&self) -> impl Iterator<Item = Ref> {
        let names = self.names.iter();
        names.map(|id| Ref::new(REFERENCE, id, OnDelete::Block))
    }
}

/// The field that holds references of policies.
pub(crate) const REFERENCE: &str = "traffic_policy";
