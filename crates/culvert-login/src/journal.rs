//! What others are told of log-ins, and what they tell back: sessions that came up or were used go
//! out through a bounded queue, sessions that ended come in as a table.
//!
//! The edge knows of no store. Whoever has one notes what comes out of the queue and keeps the table
//! up to date; without anyone there, log-ins work all the same and are listed nowhere.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use culvert_base::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

/// A user of an account, told apart by who vouches for him and what he is called there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UserKey([u8; 16]);

impl UserKey {
    /// The key of a user whom the provider at this URL knows by this id.
    pub fn of(account: &str, provider_url: &str, provider_user_id: &str) -> Self {
        let mut hash = Sha256::new();
        for part in [account, provider_url, provider_user_id] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let whole: [u8; 32] = hash.finalize().into();
        let mut key = [0; 16];
        key.copy_from_slice(whole.split_at(16).0);
        Self(key)
    }

    /// The key with this text.
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

/// Somebody, as a provider knows him. Empty where it does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Person {
    /// What the provider knows him by; never empty.
    #[serde(rename = "i")]
    pub provider_user_id: String,
    /// The name he logs in with.
    #[serde(rename = "u", default)]
    pub username: String,
    /// His address, unless the provider says that it is not verified.
    #[serde(rename = "e", default)]
    pub email: String,
    /// His display name.
    #[serde(rename = "n", default)]
    pub name: String,
}

/// A session that came up or is in use.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// `as_…`.
    pub session: String,
    /// `ac_…` of the endpoint's account.
    pub account: Arc<str>,
    /// `ep_…`.
    pub endpoint: String,
    /// Address of the endpoint.
    pub public_url: String,
    /// The provider: `google`, or the host of an OpenID issuer.
    pub provider: String,
    /// What it is told apart by.
    pub provider_url: String,
    /// Who it is.
    pub person: Person,
    /// The browser's `User-Agent`.
    pub user_agent: String,
    /// Where the browser is.
    pub ip_address: String,
    /// When the session began.
    pub started_at: Timestamp,
    /// When it was used.
    pub seen_at: Timestamp,
    /// When it ends if it is not used again.
    pub expires_at: Timestamp,
}

impl Sighting {
    /// Whose session it is.
    pub fn user(&self) -> UserKey {
        UserKey::of(
            &self.account,
            &self.provider_url,
            &self.person.provider_user_id,
        )
    }
}

/// A session whose user logged out.
#[derive(Clone, Debug)]
pub struct Ending {
    /// `as_…`.
    pub session: String,
    /// `ac_…` of the endpoint's account.
    pub account: Arc<str>,
    /// Whose session it is.
    pub user: UserKey,
    /// When it would have ended at the latest.
    pub until: Timestamp,
}

/// What came of noting a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It is noted as one of this user, `au_…`.
    Stored(String),
    /// It has ended.
    Ended,
    /// There are as many users as can be.
    Full,
}

/// An entry of the queue.
#[derive(Debug)]
pub enum Entry {
    /// To be noted; the answer may find nobody waiting.
    Seen(Box<Sighting>, oneshot::Sender<Noted>),
    /// To be ended.
    Ended(Box<Ending>),
}

/// Which sessions of a user have ended before their time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revoked {
    /// All that began until then.
    pub before: Option<Timestamp>,
    /// And these: `as_…`.
    pub sessions: Vec<String>,
}

impl Revoked {
    /// Whether a session has ended.
    pub fn covers(&self, session: &str, started_at: Timestamp) -> bool {
        self.before.is_some_and(|before| started_at <= before)
            || self.sessions.iter().any(|one| one == session)
    }
}

/// All of them.
pub type Revocations = HashMap<UserKey, Revoked>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_told_apart() {
        let key = UserKey::of("ac_1", "https://id.example", "7");
        assert_eq!(UserKey::parse(&key.to_string()), Some(key));
        for other in [
            UserKey::of("ac_1", "https://id.example", "77"),
            UserKey::of("ac_1", "https://id.example7", ""),
            UserKey::of("ac_2", "https://id.example", "7"),
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
