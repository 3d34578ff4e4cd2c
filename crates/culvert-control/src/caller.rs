//! Who an API call is made by, and what they may do.
//!
//! A token is judged in the order that costs a stranger's noise least: its shape and check character
//! first, then one lookup by the public half, then a comparison of digests that takes as long for
//! nobody's token as for a wrong one. A token of no key is looked up once more among the tunnel
//! credentials, whose tokens have the same shape, so that a mix-up is named. The key is read anew for every call, so a deleted one is dead
//! at the 204. What is remembered between calls is the standing of owners, and only as long as
//! nothing at all has been committed since it was read.
//!
//! Not here: limits on failed attempts, and whether `Basic` is taken (the HTTP face).

use culvert_base::{Refusal, code};
use serde::Deserialize;

/// The owner of the API key a call came with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// `usr_…` or `bot_…`.
    pub owner_id: String,
    /// User or bot.
    pub owner_kind: OwnerKind,
    /// What they may do.
    pub role: Role,
    /// `ak_…` of the key.
    pub key_id: String,
    /// The user's e-mail address, or the bot's name.
    pub subject: String,
    /// `ac_…`.
    pub account: String,
}

/// The two kinds of owner of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerKind {
    /// A person.
    User,
    /// A bot or service user.
    Bot,
}

/// What an owner may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Everything in the account.
    Admin,
    /// Everything but bots and what belongs to other owners. Bots always have this role.
    Developer,
    /// Reads.
    ReadOnly,
}

impl Caller {
    /// Refuses a writing operation of an owner who may only read (635).
    pub fn may_write(&self) -> Result<(), Refusal> {
        match self.role {
            Role::Admin | Role::Developer => Ok(()),
            Role::ReadOnly => Err(Refusal::of(code::READ_ONLY)),
        }
    }

    /// Refuses the change of another owner's object (630); admins may. One without a known owner is the admins'.
    /// `why` is the sentence that says so.
    pub(crate) fn may_change_of(&self, owner_id: &str, why: &'static str) -> Result<(), Refusal> {
        if self.role == Role::Admin || self.owner_id == owner_id {
            return Ok(());
        }
        Err(Refusal::new(code::NOT_ADMIN, why))
    }

    /// Refuses a writing operation of anybody but an admin (630, or 635 for one who may only read). `why`
    /// is the sentence that says so.
    pub(crate) fn must_be_admin(&self, why: &'static str) -> Result<(), Refusal> {
        self.may_write()?;
        match self.role {
            Role::Admin => Ok(()),
            Role::Developer | Role::ReadOnly => Err(Refusal::new(code::NOT_ADMIN, why)),
        }
    }
}
