//! Accounts and their users, which own the resources. The first start creates both; the management API shows
//! them but has no collections for them.

use culvert_store::Key;
use serde::{Deserialize, Serialize};

use crate::Role;
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

/// A person who owns keys.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct User {
    pub(crate) format: Format<1>,
    pub(crate) email: String,
    pub(crate) role: Role,
    pub(crate) active: bool,
}

impl User {
    pub(crate) const KIND: &'static str = "user";
    pub(crate) const PREFIX: &'static str = "usr";

    /// The key for looking up a user by e-mail address.
    pub(crate) fn keys(&self) -> Vec<Key> {
        vec![Self::by_email(&self.email)]
    }

    pub(crate) fn by_email(email: &str) -> Key {
        Key::new("email", email.trim().to_lowercase())
    }
}
