//! What a policy means by the name of an internal endpoint.

/// An internal host that a policy names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardTarget {
    /// The host, without wildcard.
    pub host: String,
    /// ID of the owner of the endpoints at the host when the policy was written; empty for the admins.
    pub owner: String,
}
