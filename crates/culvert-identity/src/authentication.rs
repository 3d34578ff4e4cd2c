//! Authentication of API calls: from the `Authorization` header to a caller.

use std::net::IpAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use culvert_base::{Fault, Refusal, Secret, Timestamp, code};
use culvert_resources::access::caller::{Caller, PresentedToken, Role};
use culvert_resources::access::key_restrictions::KeyRestrictions;
use culvert_resources::access::token;
use culvert_resources::access::token::{Kind, Shape};
use culvert_resources::access::user::User;
use culvert_resources::resource::model::Model;
use culvert_resources::{Error, stored};
use culvert_store::Head;
use serde::Deserialize;

use crate::api_key::model::{ApiKey, PreviousToken};
use crate::user::people;
use crate::{Identity, credential};

const TOO_OLD: &str = "The token of the API key is older than the account allows (rule `maximum_age`); rotate the key.";

/// The part of a stored key that authentication reads.
#[derive(Deserialize)]
pub(crate) struct KeyOfCaller {
    pub(crate) owner_id: String,
    pub(crate) digest: String,
    #[serde(default)]
    pub(crate) previous: Option<PreviousToken>,
    #[serde(default)]
    pub(crate) restrictions: KeyRestrictions,
    #[serde(default)]
    pub(crate) rotated_at: Option<Timestamp>,
}

impl KeyOfCaller {
    /// The valid tokens of the key, which was created at this time: the current one, and the previous one until its end.
    fn tokens(&self, created_at: Timestamp, now: Timestamp) -> Vec<PresentedToken> {
        let token = |digest: &str, issued_at: Option<Timestamp>, until| PresentedToken {
            digest: digest.into(),
            issued_at: issued_at.unwrap_or(created_at),
            until,
        };
        let previous = self
            .previous
            .iter()
            .filter(|previous| now < previous.until)
            .map(|previous| token(&previous.digest, previous.issued_at, Some(previous.until)));
        std::iter::once(token(&self.digest, self.rotated_at, None))
            .chain(previous)
            .collect()
    }

    /// The token with this digest, if it still works (203).
    pub(crate) fn token(
        &self,
        digest: Option<&str>,
        created_at: Timestamp,
        now: Timestamp,
    ) -> Result<PresentedToken, Refusal> {
        let mut valid = self.tokens(created_at, now).into_iter();
        valid
            .find(|valid| Some(&*valid.digest) == digest)
            .ok_or_else(|| Refusal::of(code::API_KEY_INVALID))
    }
}

/// The digest of a stored tunnel credential's token.
#[derive(Deserialize)]
pub(crate) struct DigestOfToken {
    pub digest: String,
}

impl Identity {
    /// Authenticates the caller by the `Authorization` header. Codes 200 to 203, 205, 206, 208, 636
    /// and 640.
    ///
    /// `Basic` credentials are read like `Bearer` ones; the HTTP server decides whether they are accepted.
    pub async fn authenticate(&self, authorization: Option<&str>) -> Result<Caller, Error> {
        let header = authorization.ok_or_else(|| Refusal::of(code::CREDENTIAL_MISSING))?;
        let token = credential(header).ok_or_else(|| Refusal::of(code::AUTHORIZATION_MALFORMED))?;
        let body = match token::shape(token.reveal()) {
            Shape::Token {
                body,
                kind: None | Some(Kind::Key | Kind::Agent),
            } => body,
            Shape::Token { .. } => return Err(Refusal::of(code::API_KEY_INVALID).into()),
            Shape::Mistyped => return Err(Refusal::of(code::API_KEY_INVALID).into()),
            Shape::KeyId => return Err(Refusal::of(code::CREDENTIAL_IS_API_KEY_ID).into()),
            Shape::Unknown => return Err(Refusal::of(code::API_KEY_TOKEN_MALFORMED).into()),
        };
        let key_id = format!("{}_{body}", ApiKey::ID_PREFIX);
        let document = self.kernel.store.get(ApiKey::KIND, &key_id).await?;
        let key: Option<KeyOfCaller> = document.as_ref().map(stored::read).transpose()?;
        let now = self.kernel.clock.now();
        let valid = key.as_ref().zip(document.as_ref());
        let valid = valid.map(|(key, document)| key.tokens(document.head.created_at, now));
        let is_known = |digest: Option<&str>| self.kernel.pepper.recognises(digest, token.reveal());
        let presented = match valid {
            Some(valid) => valid
                .into_iter()
                .find(|valid| is_known(Some(&valid.digest))),
            // Takes the same time as for a known key.
            None => {
                is_known(None);
                None
            }
        };
        let (Some(presented), Some(key), Some(document)) = (presented, key, document) else {
            let is_credential = self.is_credential(body, token.reveal()).await?;
            let code = if is_credential {
                code::CREDENTIAL_NOT_API_KEY
            } else {
                code::API_KEY_INVALID
            };
            return Err(Refusal::of(code).into());
        };
        self.caller_of(key, document.head, presented).await
    }

    /// The current rights of a caller, for work that outlives the call that started it. Codes 203, 205, 220,
    /// 636, 640 and 641.
    pub async fn caller_again(&self, caller: &Caller, address: IpAddr) -> Result<Caller, Error> {
        if caller.key_id.is_empty() {
            let now = self.person_again(&caller.owner_id).await?;
            self.admit(&now, address)?;
            return Ok(now);
        }
        let document = self.kernel.store.get(ApiKey::KIND, &caller.key_id).await?;
        let document = document.ok_or_else(|| Refusal::of(code::API_KEY_INVALID))?;
        let key: KeyOfCaller = stored::read(&document)?;
        let token = caller.token.as_ref().map(|token| &*token.digest);
        let token = key.token(token, document.head.created_at, self.kernel.clock.now())?;
        let now = self.caller_of(key, document.head, token).await?;
        self.admit(&now, address)?;
        Ok(now)
    }

    /// The current owner of an authenticated key. Codes 203, 205, 636 and 640.
    pub(crate) async fn caller_of(
        &self,
        key: KeyOfCaller,
        head: Head,
        mut token: PresentedToken,
    ) -> Result<Caller, Error> {
        // The removal of an owner removes its keys, so the key no longer exists.
        let standing = self.standings.of(&self.kernel.store, &key.owner_id).await?;
        let standing = standing.ok_or_else(|| Refusal::of(code::API_KEY_INVALID))?;
        if standing.is_suspended {
            return Err(Refusal::of(code::ACCOUNT_SUSPENDED).into());
        }
        let owner = standing.owner;
        if !owner.active {
            return Err(Refusal::of(code::OWNER_INACTIVE).into());
        }
        let mut restrictions = key.restrictions;
        let now = self.kernel.clock.now();
        restrictions.check_time(now)?;
        // A token from before a rotation gives no rights that outlive it.
        let ends = [restrictions.expires_at, token.until];
        restrictions.expires_at = ends.into_iter().flatten().min();
        // The age ends the token, but restricts nothing before: keys that it makes have their own age.
        if let Some(end) = standing.key_rules.ends_at(token.issued_at) {
            if end <= now {
                return Err(Refusal::new(code::API_KEY_EXPIRED, TOO_OLD).into());
            }
            token.until = Some(token.until.map_or(end, |until| until.min(end)));
        }
        let highest = restrictions.role.unwrap_or(Role::Admin);
        Ok(Caller {
            owner_id: key.owner_id,
            owner_kind: owner.kind,
            role: owner.role.min(highest),
            key_id: head.id,
            subject: owner.subject,
            account: head.account,
            restrictions: (!restrictions.is_none()).then(|| Arc::new(restrictions)),
            token: Some(token),
            context: None,
        })
    }

    /// The current rights of a person who signed in to the console without a key. Codes 203, 205 and 636.
    pub(crate) async fn person_again(&self, id: &str) -> Result<Caller, Error> {
        let document = self.kernel.store.get(User::KIND, id).await?;
        let document = document.ok_or_else(|| Refusal::of(code::API_KEY_INVALID))?;
        let user: User = stored::read(&document)?;
        let standing = self.standings.of(&self.kernel.store, id).await?;
        let standing = standing.ok_or_else(|| Refusal::of(code::API_KEY_INVALID))?;
        if standing.is_suspended {
            return Err(Refusal::of(code::ACCOUNT_SUSPENDED).into());
        }
        if !user.active {
            return Err(Refusal::of(code::OWNER_INACTIVE).into());
        }
        Ok(people::person(&document.head, &user))
    }

    /// Whether `token` is the token of the tunnel credential with this ID body.
    pub(crate) async fn is_credential(&self, body: &str, token: &str) -> Result<bool, Fault> {
        let ty = &credential::TYPE;
        let document = self
            .kernel
            .store
            .get(ty.kind, &ty.stored_id_of(body))
            .await?;
        let stored: Option<DigestOfToken> = document.as_ref().map(stored::read).transpose()?;
        let digest = stored.as_ref().map(|stored| stored.digest.as_str());
        Ok(self.kernel.pepper.recognises(digest, token))
    }
}

/// The secret in an `Authorization` header: the text after `Bearer`, or the user name or password of `Basic`.
pub fn credential(header: &str) -> Option<Secret> {
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
    // Some tools require a password beside the token, others a user name.
    let is_user = password.is_empty() || (has_a_shape(user) && !has_a_shape(password));
    let token = if is_user { user } else { password };
    (!token.is_empty()).then(|| Secret::new(token.to_owned()))
}

pub(crate) fn has_a_shape(text: &str) -> bool {
    !matches!(token::shape(text), Shape::Unknown)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn credentials_are_read_from_headers() {
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
        fn any_header_is_parsed_or_refused(header in "\\PC{0,60}|(Bearer|Basic) [A-Za-z0-9+/=]{0,40}") {
            drop(credential(&header));
        }
    }
}
