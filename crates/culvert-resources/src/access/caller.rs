//! The caller of an API request, and its rights.
//!
//! Tokens are checked in the order that costs least for invalid requests: first the shape and check
//! character, then one lookup by the public half, then a digest comparison that takes the same time for an
//! unknown token as for a wrong one. A token of no key is also looked up among the tunnel credentials, whose
//! tokens have the same shape, so that the error can name the mix-up. The key is read for every call, so a
//! deleted key stops working as soon as the deletion returns 204. Only the standing of owners is cached
//! between calls, until the next commit of any kind.
//!
//! The HTTP server limits failed attempts and decides whether `Basic` is accepted.

use std::net::IpAddr;
use std::sync::Arc;

use culvert_base::{Refusal, Timestamp, code};
use culvert_events::CallContext;
use serde::Deserialize;

use crate::access::key_restrictions::KeyRestrictions;

/// The owner of the API key a call came with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// `usr_…` or `bot_…`.
    pub owner_id: String,
    /// User or bot.
    pub owner_kind: OwnerKind,
    /// The caller's role: the lower one of its owner and its key.
    pub role: Role,
    /// `ak_…` of the key; empty for a person who signed in to the console without one.
    pub key_id: String,
    /// The user's e-mail address, or the bot's name.
    pub subject: String,
    /// `ac_…`.
    pub account: String,
    /// The restrictions of the key, if it has any.
    pub restrictions: Option<Arc<KeyRestrictions>>,
    /// The token of the key that it came with. `None` for a caller without an API key.
    pub token: Option<PresentedToken>,
    /// How its call came, as audit events show it; `None` where the server acts for it later.
    pub context: Option<Arc<CallContext>>,
}

/// Where a request came from whose caller is not known yet.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The client's own address, not a proxy's.
    pub address: IpAddr,
    /// How the call came, for audit events.
    pub context: Option<Arc<CallContext>>,
}

impl From<IpAddr> for Origin {
    fn from(address: IpAddr) -> Self {
        Self {
            address,
            context: None,
        }
    }
}

/// The token that a caller came with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentedToken {
    /// Its digest, as the key has it: `<pepper id>.<hex>`.
    pub digest: Arc<str>,
    /// When the key got it.
    pub issued_at: Timestamp,
    /// When it stops working before the key does: because the key was rotated since, or because of the maximum age of
    /// tokens.
    pub until: Option<Timestamp>,
}

/// The two kinds of owner of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerKind {
    /// A person.
    User,
    /// A bot or service user.
    Bot,
}

/// The rights of an owner.
///
/// Each role includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads what a member may read.
    ReadOnly,
    /// Everything except people, bots and objects of other owners. Bots always have this role.
    // Installations of earlier versions stored another name.
    #[serde(alias = "developer")]
    Member,
    /// Everything in the account.
    Admin,
}

impl Role {
    /// The role with this name.
    pub fn parse(name: &str) -> Option<Self> {
        let mut roles = [Self::ReadOnly, Self::Member, Self::Admin].into_iter();
        roles.find(|role| role.name() == name)
    }

    /// As in the API: `read_only`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "read_only",
            Self::Member => "member",
            Self::Admin => "admin",
        }
    }
}

impl Caller {
    /// When its rights end: with the key, with the token from before a rotation, or with the age of the token.
    pub fn ends_at(&self) -> Option<Timestamp> {
        let key = self.restrictions.as_ref().and_then(|key| key.expires_at);
        let token = self.token.as_ref().and_then(|token| token.until);
        key.into_iter().chain(token).min()
    }

    /// Refuses a write of a read-only owner (635).
    pub fn may_write(&self) -> Result<(), Refusal> {
        match self.role {
            Role::Admin | Role::Member => Ok(()),
            Role::ReadOnly => Err(Refusal::of(code::READ_ONLY)),
        }
    }

    /// Refuses a write of anyone but an admin (630, or 635 for a read-only owner). `why` is the error
    /// message.
    pub fn must_be_admin(&self, why: &'static str) -> Result<(), Refusal> {
        self.may_write()?;
        match self.role {
            Role::Admin => Ok(()),
            Role::Member | Role::ReadOnly => Err(Refusal::new(code::NOT_ADMIN, why)),
        }
    }
}
