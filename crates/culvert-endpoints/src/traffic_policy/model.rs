//! Stored form of a traffic policy.

use std::collections::BTreeMap;

use culvert_resources::resource::model::CHECKED_REFERENCE;
use culvert_store::{OnDelete, Ref};
use serde::{Deserialize, Serialize};

/// The stored form.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct StoredPolicy {
    /// The text as shown.
    pub shown: String,
    /// The whole text, encrypted, if the shown text omits secrets.
    #[serde(default)]
    pub sealed: Option<String>,
    /// IDs of the objects that it refers to, without duplicates: IP policies, certificate authorities and
    /// secrets. None of them can be deleted while it does.
    #[serde(default)]
    pub names: Vec<String>,
    /// The internal hosts that it names, with the owners of their endpoints at the last write: who takes a freed name
    /// gets none of its requests. Without the hosts that had no endpoint then.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub forwards_to: BTreeMap<String, String>,
    /// The caller's owner that wrote the secrets. Empty if the policy has none, or was stored before this was
    /// recorded: then only admins may read them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub secrets_by: String,
    /// Likely mistakes, as sentences, as of the last write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl StoredPolicy {
    /// The references that keep these objects from being deleted.
    pub fn refs(&self) -> impl Iterator<Item = Ref> {
        let names = self.names.iter();
        names.map(|id| Ref::new(CHECKED_REFERENCE, id, OnDelete::Block))
    }
}
