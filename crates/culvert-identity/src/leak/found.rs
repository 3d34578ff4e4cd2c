//! What a key or credential keeps of a report that its token is leaked.

use culvert_base::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// That a token was reported as leaked.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[schemars(rename = "TokenLeak")]
pub struct Leak {
    /// When it was reported.
    #[schemars(with = "String", extend("format" = "date-time"))]
    pub at: Timestamp,
    /// Where the token was found, as the reporter says; may be empty.
    pub url: String,
    /// What it was found in, such as `commit`, as the reporter says; may be empty.
    pub source: String,
    /// Whether the token was revoked.
    #[serde(rename = "revoked")]
    pub is_revoked: bool,
}
