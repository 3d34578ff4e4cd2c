//! The interface to a store of sessions: records of new, used and ended sessions go out through a bounded queue, and
//! sessions ended by an operator come in as a table.
//!
//! The edge knows no store. The reader of the queue stores the records and updates the table. Without a reader,
//! sign-ins work but are not listed anywhere.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use culvert_base::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

/// Identifies a user of an owner's endpoints by provider and user id at the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UserKey([u8; 16]);

impl UserKey {
    /// Computes the key from the account and the owner of the endpoints, provider URL and user id at the provider. An
    /// empty owner gives the key of former versions, in which owners shared their users.
    pub fn of(account: &str, owner: &str, provider_url: &str, provider_user_id: &str) -> Self {
        let mut hash = Sha256::new();
        let owner = Some(owner).filter(|owner| !owner.is_empty());
        let parts = [account, provider_url, provider_user_id].into_iter();
        for part in parts.chain(owner) {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let whole: [u8; 32] = hash.finalize().into();
        let mut key = [0; 16];
        key.copy_from_slice(whole.split_at(16).0);
        Self(key)
    }

    /// Parses a key.
    pub fn parse(text: &str) -> Option<Self> {
        let number = u128::from_str_radix(text, 16).ok()?;
        (text.len() == 32).then_some(Self(number.to_be_bytes()))
    }
}

impl fmt::Display for UserKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// A user's data at a provider. Fields are empty if the provider does not return them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Person {
    /// The provider's id for the user; never empty.
    #[serde(rename = "i")]
    pub provider_user_id: String,
    /// The user name.
    #[serde(rename = "u", default)]
    pub username: String,
    /// The e-mail address, unless the provider marks it as not verified.
    #[serde(rename = "e", default)]
    pub email: String,
    /// The display name.
    #[serde(rename = "n", default)]
    pub name: String,
}

/// A record of a new session or of the use of a session.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// `as_…`.
    pub session: String,
    /// `ac_…` of the endpoint's account.
    pub account: Arc<str>,
    /// ID of the endpoint's owner; empty if unknown.
    pub owner: Arc<str>,
    /// `ep_…`.
    pub endpoint: String,
    /// Address of the endpoint.
    pub public_url: String,
    /// The provider: `google`, or the host of an OpenID issuer.
    pub provider: String,
    /// The URL that identifies the provider.
    pub provider_url: String,
    /// The user.
    pub person: Person,
    /// The browser's `User-Agent`.
    pub user_agent: String,
    /// The IP address of the browser.
    pub ip_address: String,
    /// When the session began.
    pub started_at: Timestamp,
    /// When the session was last used.
    pub seen_at: Timestamp,
    /// When the session expires unless it is used again.
    pub expires_at: Timestamp,
}

impl Sighting {
    /// The key of the session's user.
    pub fn user(&self) -> UserKey {
        UserKey::of(
            &self.account,
            &self.owner,
            &self.provider_url,
            &self.person.provider_user_id,
        )
    }
}

/// A session whose user signed out.
#[derive(Clone, Debug)]
pub struct Ending {
    /// `as_…`.
    pub session: String,
    /// `ac_…` of the endpoint's account.
    pub account: Arc<str>,
    /// The user of the session.
    pub user: UserKey,
    /// When the session would have expired at the latest.
    pub until: Timestamp,
}

/// The result of recording a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Noted {
    /// The session is recorded for this user, `au_…`.
    Stored(String),
    /// The session has been ended.
    Ended,
    /// The limit of users is reached.
    Full,
}

/// An entry of the queue.
#[derive(Debug)]
pub enum JournalEntry {
    /// A session to record. The receiver of the result may be gone.
    SignedIn(Box<Sighting>, oneshot::Sender<Noted>),
    /// A session to end.
    Ended(Box<Ending>),
}

/// The sessions of a user that were ended early.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revoked {
    /// All sessions that began at this time or before.
    pub before: Option<Timestamp>,
    /// Further sessions: `as_…`.
    pub sessions: Vec<String>,
}

impl Revoked {
    /// Whether the session has been ended.
    pub fn covers(&self, session: &str, started_at: Timestamp) -> bool {
        self.before.is_some_and(|before| started_at <= before)
            || self.sessions.iter().any(|one| one == session)
    }
}

/// The sessions of all users that were ended early.
pub type Revocations = HashMap<UserKey, Revoked>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_distinguished() {
        let key = UserKey::of("ac_1", "usr_1", "https://id.example", "7");
        assert_eq!(UserKey::parse(&key.to_string()), Some(key));
        for other in [
            UserKey::of("ac_1", "usr_1", "https://id.example", "77"),
            UserKey::of("ac_1", "usr_1", "https://id.example7", ""),
            UserKey::of("ac_2", "usr_1", "https://id.example", "7"),
            UserKey::of("ac_1", "bot_1", "https://id.example", "7"),
            UserKey::of("ac_1", "", "https://id.example", "7"),
        ] {
            assert_ne!(other, key);
        }
        assert_eq!(UserKey::parse("7"), None);
        assert_eq!(UserKey::parse(&"g".repeat(32)), None);
    }

    #[test]
    fn some_sessions_end_and_others_go_on() {
        let at = Timestamp::from_unix_seconds;
        let revoked = Revoked {
            before: Some(at(10)),
            sessions: vec!["as_2".into()],
        };
        assert!(revoked.covers("as_1", at(10)) && revoked.covers("as_2", at(11)));
        assert!(!revoked.covers("as_1", at(11)));
        assert!(!Revoked::default().covers("as_1", at(0)));
    }
}
