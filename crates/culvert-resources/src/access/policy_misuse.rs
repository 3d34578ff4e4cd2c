//! What a traffic policy does with secrets although it may not.

/// A policy that may not do something with secrets that it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyMisuse {
    /// The endpoint, `ep_…`.
    pub endpoint_id: String,
    /// Its URL.
    pub url: String,
    /// What the policy may not do, one sentence.
    pub message: String,
    /// Whether it only may echo a secret, which policies of earlier versions may do until 30 days after the upgrade.
    pub is_echo: bool,
}
