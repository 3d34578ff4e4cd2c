//! Accounts, which own the resources. The first start creates one; the management API shows it but has no collection
//! for accounts.

use serde::{Deserialize, Serialize};

use crate::stored::Format;

/// The tenant that resources belong to.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Account {
    pub(crate) format: Format<1>,
    pub(crate) name: String,
    /// A suspended account's keys are refused with 205.
    pub(crate) suspended: bool,
}

impl Account {
    /// Document kind, and prefix of its IDs.
    pub(crate) const KIND: &'static str = "account";
    pub(crate) const PREFIX: &'static str = "ac";
}
