//! Sessions, which are stored in the session cookie.

pub(crate) mod cookie;

use std::time::Duration;

use culvert_base::{Entropy, Timestamp};
use serde::{Deserialize, Serialize};

use crate::journal::Person;
use crate::seal::{LoginKeys, Purpose};
use crate::session::cookie::SEALED_BYTES_MAX;

/// A session is renewed if its last use is at least this long ago, or a quarter of its idle timeout if that is
/// shorter.
const RENEW_AFTER: Duration = Duration::from_secs(60);

/// A session. Only the edge can read and create it.
#[derive(Clone, Deserialize, Serialize)]
pub(crate) struct Session {
    /// `as_…`.
    #[serde(rename = "i")]
    pub(crate) id: String,
    /// `au_…`; empty while unknown.
    #[serde(rename = "u", default)]
    pub(crate) user_id: String,
    #[serde(rename = "w")]
    pub(crate) person: Person,
    /// In milliseconds.
    #[serde(rename = "s")]
    started: i64,
    /// In seconds, like the times below.
    #[serde(rename = "l")]
    seen: i64,
    /// When the provider last confirmed the user.
    #[serde(rename = "q")]
    asked: i64,
    /// Fingerprint of the configuration that the provider's response depends on.
    #[serde(rename = "c")]
    pub(crate) print: String,
    #[serde(rename = "t", default)]
    pub(crate) tokens: Tokens,
}

/// The provider's tokens. Empty if it issued none, or if the token is too long to store.
#[derive(Clone, Default, Deserialize, Serialize)]
pub(crate) struct Tokens {
    #[serde(rename = "a", default)]
    pub(crate) access: String,
    #[serde(rename = "r", default)]
    pub(crate) refresh: String,
    #[serde(rename = "i", default)]
    pub(crate) identity: String,
    /// When the access token expires, in seconds.
    #[serde(rename = "e", default)]
    pub(crate) expires: Option<i64>,
}

impl Tokens {
    /// Omits the token of a step from 1 to 3: first the identity token, last the refresh token.
    pub(crate) fn shorten(&mut self, step: usize) {
        match step {
            1 => self.identity.clear(),
            2 => self.access.clear(),
            3 => self.refresh.clear(),
            _ => {}
        }
    }
}

/// Time limits of sessions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spans {
    pub(crate) max: Duration,
    pub(crate) idle: Duration,
    pub(crate) refresh: Duration,
}

/// The action that a session needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// None: the session is valid.
    Good,
    /// Send a renewed session to the browser.
    Renew,
    /// Request the user's data from the provider.
    Ask,
    /// End it: it was idle for too long.
    TimedOut,
    /// End it: it reached its maximum duration.
    TooOld,
}

impl Session {
    pub(crate) fn new(
        id: String,
        person: Person,
        print: &str,
        tokens: Tokens,
        now: Timestamp,
    ) -> Self {
        Self {
            id,
            user_id: String::new(),
            person,
            started: now.unix_millis(),
            seen: now.unix_seconds(),
            asked: now.unix_seconds(),
            print: print.to_owned(),
            tokens,
        }
    }

    pub(crate) fn open(keys: &LoginKeys, context: &str, text: &str) -> Option<Self> {
        let bytes = keys.open(Purpose::Session, context, text)?;
        serde_json::from_slice(&bytes).ok()
    }

    /// Encrypts the session. Omits tokens that do not fit: first the identity token, last the refresh token.
    pub(crate) fn seal(
        &self,
        keys: &LoginKeys,
        entropy: &dyn Entropy,
        context: &str,
    ) -> Option<String> {
        let mut fitting = self.clone();
        for step in 0..4 {
            fitting.tokens.shorten(step);
            let bytes = serde_json::to_vec(&fitting).ok()?;
            let sealed = keys.seal(entropy, Purpose::Session, context, &bytes)?;
            if sealed.len() <= SEALED_BYTES_MAX {
                return Some(sealed);
            }
        }
        None
    }

    pub(crate) fn started_at(&self) -> Timestamp {
        Timestamp::from_unix_millis(self.started)
    }

    /// When the session expires unless it is used again.
    pub(crate) fn ends_at(&self, spans: Spans) -> Timestamp {
        let idle = Timestamp::from_unix_seconds(self.seen).plus(spans.idle);
        self.last_end(spans).min(idle)
    }

    /// When the session expires at the latest.
    pub(crate) fn last_end(&self, spans: Spans) -> Timestamp {
        self.started_at().plus(spans.max)
    }

    pub(crate) fn standing(&self, spans: Spans, print: &str, now: Timestamp) -> Standing {
        let unseen = now.since(Timestamp::from_unix_seconds(self.seen));
        let unasked = now.since(Timestamp::from_unix_seconds(self.asked));
        match () {
            () if now.since(self.started_at()) > spans.max => Standing::TooOld,
            () if unseen > spans.idle => Standing::TimedOut,
            () if unasked >= spans.refresh || self.print != print => Standing::Ask,
            () if unseen >= RENEW_AFTER.min(spans.idle / 4) && unseen > Duration::ZERO => {
                Standing::Renew
            }
            () => Standing::Good,
        }
    }

    /// Records a use of the session.
    pub(crate) fn seen(&mut self, now: Timestamp) {
        self.seen = now.unix_seconds();
    }

    /// Records that the provider confirmed the user.
    pub(crate) fn confirmed(&mut self, print: &str, now: Timestamp) {
        self.asked = now.unix_seconds();
        print.clone_into(&mut self.print);
    }

    /// Records that the provider was unavailable. The next attempt is after `wait`.
    pub(crate) fn postponed(&mut self, spans: Spans, print: &str, wait: Duration, now: Timestamp) {
        self.asked = now.minus(spans.refresh).plus(wait).unix_seconds();
        print.clone_into(&mut self.print);
    }

    /// When the provider was last asked. With the session's id, this identifies a refresh.
    pub(crate) fn asked(&self) -> i64 {
        self.asked
    }

    /// Whether the access token has expired.
    pub(crate) fn is_expired(&self, now: Timestamp) -> bool {
        let expires = self.tokens.expires;
        expires.is_some_and(|at| at <= now.unix_seconds())
    }
}

#[cfg(test)]
mod tests {
    use culvert_base::SeededEntropy;

    use super::*;

    fn session() -> Session {
        let tokens = Tokens {
            access: "a".repeat(9000),
            refresh: "r".repeat(100),
            identity: "i".repeat(4000),
            expires: Some(1_800_000_060),
        };
        let now = Timestamp::from_unix_seconds(1_800_000_000);
        Session::new("as_1".into(), Person::default(), "p", tokens, now)
    }

    #[test]
    fn tokens_that_do_not_fit_are_left_out() {
        let (keys, entropy) = (LoginKeys::new([[1; 32]]), SeededEntropy::new(1));
        let kept = |session: &Session| {
            let sealed = session.seal(&keys, &entropy, "c").unwrap();
            assert!(sealed.len() <= SEALED_BYTES_MAX);
            let tokens = Session::open(&keys, "c", &sealed).unwrap().tokens;
            (
                tokens.access.len(),
                tokens.refresh.len(),
                tokens.identity.len(),
            )
        };
        let mut session = session();
        assert_eq!(kept(&session), (9000, 100, 0));
        session.tokens.access = "a".repeat(20_000);
        assert_eq!(kept(&session), (0, 100, 0));
        session.tokens.refresh = "r".repeat(20_000);
        assert_eq!(kept(&session), (0, 0, 0));
        session.tokens = Tokens {
            identity: "i".repeat(4000),
            ..Tokens::default()
        };
        assert_eq!(kept(&session), (0, 0, 4000));
    }

    #[test]
    fn a_session_ages() {
        let seconds = Duration::from_secs;
        let spans = Spans {
            max: seconds(1000),
            idle: seconds(100),
            refresh: seconds(500),
        };
        let mut session = session();
        let at = |after: u64| Timestamp::from_unix_seconds(1_800_000_000).plus(seconds(after));
        for (after, standing) in [
            (0, Standing::Good),
            (24, Standing::Good),
            (25, Standing::Renew),
            (100, Standing::Renew),
            (101, Standing::TimedOut),
        ] {
            assert_eq!(session.standing(spans, "p", at(after)), standing, "{after}");
        }
        assert_eq!(session.standing(spans, "q", at(1)), Standing::Ask);
        session.seen(at(499));
        assert_eq!(session.ends_at(spans), at(599));
        assert_eq!(session.standing(spans, "p", at(499)), Standing::Good);
        assert_eq!(session.standing(spans, "p", at(500)), Standing::Ask);
        session.postponed(spans, "p", seconds(60), at(500));
        assert_eq!(session.standing(spans, "p", at(510)), Standing::Good);
        assert_eq!(session.standing(spans, "p", at(560)), Standing::Ask);
        session.seen(at(1000));
        session.confirmed("p", at(1000));
        assert_eq!(session.ends_at(spans), at(1000));
        assert_eq!(session.standing(spans, "p", at(1000)), Standing::Good);
        assert_eq!(session.standing(spans, "p", at(1001)), Standing::TooOld);
        assert!(session.is_expired(at(60)) && !session.is_expired(at(59)));
    }
}
