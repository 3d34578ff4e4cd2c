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

use std::sync::{Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_base::{Fault, Refusal, Secret, code};
use culvert_store::Head;
use hashlink::LruCache;
use serde::Deserialize;
use tokio::sync::watch;

use crate::owner::Owner;
use crate::resource::{api_key, tunnel_credential};
use crate::tenant::Account;
use crate::token::{self, Shape};
use crate::{Control, Error, stored};

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

/// The part of a stored key that authentication reads.
#[derive(Deserialize)]
pub(crate) struct KeyOfCaller {
    owner_id: String,
    digest: String,
}

/// The part of a stored tunnel credential that tells its token.
#[derive(Deserialize)]
struct DigestOfToken {
    digest: String,
}

impl Control {
    /// Who calls, by the `Authorization` header. Codes 200 to 203, 205, 206, 208 and 636.
    ///
    /// `Basic` credentials are read like `Bearer` ones; whether they are taken at all is the HTTP
    /// face's decision.
    pub async fn authenticate(&self, authorization: Option<&str>) -> Result<Caller, Error> {
        let header = authorization.ok_or_else(|| Refusal::of(code::CREDENTIAL_MISSING))?;
        let token = credential(header).ok_or_else(|| Refusal::of(code::AUTHORIZATION_MALFORMED))?;
        let body = match token::shape(token.reveal()) {
            Shape::Token { body } => body,
            Shape::Mistyped => return Err(Refusal::of(code::API_KEY_INVALID).into()),
            Shape::KeyId => return Err(Refusal::of(code::CREDENTIAL_IS_API_KEY_ID).into()),
            Shape::Unknown => return Err(Refusal::of(code::API_KEY_TOKEN_MALFORMED).into()),
        };
        let key_id = format!("{}_{body}", api_key::TYPE.id_prefix);
        let document = self.store.get(api_key::TYPE.kind, &key_id).await?;
        let key: Option<KeyOfCaller> = document.as_ref().map(stored::read).transpose()?;
        let digest = key.as_ref().map(|key| key.digest.as_str());
        if !self.pepper.recognises(digest, token.reveal()) {
            let is_credential = self.is_credential(body, token.reveal()).await?;
            let code = if is_credential {
                code::CREDENTIAL_NOT_API_KEY
            } else {
                code::API_KEY_INVALID
            };
            return Err(Refusal::of(code).into());
        }
        let (Some(key), Some(document)) = (key, document) else {
            return Err(Refusal::of(code::API_KEY_INVALID).into());
        };
        self.caller_of(key, document.head).await
    }

    /// Who a key that was recognised stands for, now. Codes 203, 205 and 636.
    pub(crate) async fn caller_of(&self, key: KeyOfCaller, head: Head) -> Result<Caller, Error> {
        // An owner that went between the two reads took the key along.
        let standing = self.standings.of(self, &key.owner_id).await?;
        let (owner, is_suspended) = standing.ok_or_else(|| Refusal::of(code::API_KEY_INVALID))?;
        if is_suspended {
            return Err(Refusal::of(code::ACCOUNT_SUSPENDED).into());
        }
        if !owner.active {
            return Err(Refusal::of(code::OWNER_INACTIVE).into());
        }
        Ok(Caller {
            owner_id: key.owner_id,
            owner_kind: owner.kind,
            role: owner.role,
            key_id: head.id,
            subject: owner.subject,
            account: head.account,
        })
    }

    /// Whether `token` is that of the tunnel credential whose id has this body.
    async fn is_credential(&self, body: &str, token: &str) -> Result<bool, Fault> {
        let ty = &tunnel_credential::TYPE;
        let document = self.store.get(ty.kind, &ty.stored_id_of(body)).await?;
        let stored: Option<DigestOfToken> = document.as_ref().map(stored::read).transpose()?;
        let digest = stored.as_ref().map(|stored| stored.digest.as_str());
        Ok(self.pepper.recognises(digest, token))
    }
}

/// The secret text of an `Authorization` header: after `Bearer`, or user name or password of
/// `Basic`.
fn credential(header: &str) -> Option<Secret> {
    let (scheme, rest) = header.trim().split_once(' ')?;
    let rest = rest.trim();
    if scheme.eq_ignore_ascii_case("bearer") {
        let is_plain = !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_graphic());
        return is_plain.then(|| Secret::new(rest.to_owned()));
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = Secret::new(String::from_utf8(STANDARD.decode(rest).ok()?).ok()?);
    let (user, password) = pair.reveal().split_once(':')?;
    // Some tools insist on a password beside the token, others on a user.
    let is_user = password.is_empty() || (has_a_shape(user) && !has_a_shape(password));
    let token = if is_user { user } else { password };
    (!token.is_empty()).then(|| Secret::new(token.to_owned()))
}

fn has_a_shape(text: &str) -> bool {
    !matches!(token::shape(text), Shape::Unknown)
}

/// Owners and whether their account is suspended, each as of a revision of the store.
#[derive(Debug)]
pub(crate) struct Standings {
    revision: watch::Receiver<i64>,
    known: Mutex<LruCache<String, (i64, Owner, bool)>>,
}

/// Owners remembered at most.
const STANDINGS_MAX: usize = 1024;

impl Standings {
    pub(crate) fn new(revision: watch::Receiver<i64>) -> Self {
        Self {
            revision,
            known: Mutex::new(LruCache::new(STANDINGS_MAX)),
        }
    }

    /// An owner, and whether their account is suspended.
    pub(crate) async fn of(
        &self,
        control: &Control,
        id: &str,
    ) -> Result<Option<(Owner, bool)>, Fault> {
        // Taken before reading: a commit in between makes what is read too old already.
        let revision = *self.revision.borrow();
        if let Some((known_at, owner, is_suspended)) = self.lock().get(id)
            && *known_at == revision
        {
            return Ok(Some((owner.clone(), *is_suspended)));
        }
        let Some((owner, account_id)) = Owner::load(&control.store, id).await? else {
            return Ok(None);
        };
        let is_suspended = match control.store.get(Account::KIND, &account_id).await? {
            Some(document) => stored::read::<Account>(&document)?.suspended,
            None => true,
        };
        // The one that was asked for longest ago makes room.
        self.lock()
            .insert(id.to_owned(), (revision, owner.clone(), is_suspended));
        Ok(Some((owner, is_suspended)))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LruCache<String, (i64, Owner, bool)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn credentials() {
        let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
        let token = format!("{}_{}", "0".repeat(27), "a".repeat(21));
        for (header, expected) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            (&basic("abc:"), Some("abc")),
            (&basic(":abc"), Some("abc")),
            (&basic("x:abc"), Some("abc")),
            (&basic(&format!("{token}:x")), Some(&*token)),
            (&basic(&format!("x:{token}")), Some(&*token)),
            (&basic(&format!("{token}:{token}")), Some(&*token)),
            (&basic("abc"), None),
            (&basic(":"), None),
            ("Basic ???", None),
            ("Bearer", None),
            ("Bearer ", None),
            ("Bearer a b", None),
            ("Digest abc", None),
            ("abc", None),
            ("", None),
        ] {
            let found = credential(header);
            assert_eq!(found.as_ref().map(Secret::reveal), expected, "{header}");
        }
    }

    proptest! {
        #[test]
        fn any_header_has_a_credential_or_none(header in "\\PC{0,60}|(Bearer|Basic) [A-Za-z0-9+/=]{0,40}") {
            drop(credential(&header));
        }
    }
}
