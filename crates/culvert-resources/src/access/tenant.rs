//! Accounts, which own the resources. The first start creates one; the management API shows it but has no collection
//! for accounts.

use serde::{Deserialize, Serialize};

use crate::access::key_rules::KeyRules;
use crate::stored::Format;

/// The tenant that resources belong to.
#[derive(Debug, Deserialize, Serialize)]
pub struct Account {
    /// Version of the stored form.
    pub format: Format<1>,
    /// Display name.
    pub name: String,
    /// A suspended account's keys are refused with 205.
    pub suspended: bool,
    /// The rules about its API keys.
    #[serde(default, skip_serializing_if = "KeyRules::is_none")]
    pub key_rules: KeyRules,
}

impl Account {
    /// Document kind, and prefix of its IDs.
    pub const KIND: &'static str = "account";
    /// Prefix of the IDs of accounts, without the underscore.
    pub const PREFIX: &'static str = "ac";
    /// Name and value of the key of the first account.
    pub const FIRST: (&'static str, &'static str) = ("order", "first");
}
