//! Who is logged in, as the session cookie says it.

use std::time::Duration;

use culvert_base::{Entropy, Timestamp};
use serde::{Deserialize, Serialize};

use super::cookie::SEALED_BYTES_MAX;
use super::journal::Person;
use super::seal::{LoginKeys, Purpose};

/// A sealed session is renewed when it was last seen this long ago, or a quarter of its idle time.
const RENEW_AFTER: Duration = Duration::from_secs(60);

/// A session. What is in it only the edge can read and make.
#[derive(Clone, Deserialize, Serialize)]
pub(crate) struct Session {
    /// `as_…`.
    #[serde(rename = "i")]
    pub(crate) id: String,
    /// `au_…`; empty while it is not known.
    #[serde(rename = "u", default)]
    pub(crate) user_id: String,
    #[serde(rename = "w")]
    pub(crate) person: Person,
    /// In milliseconds.
    #[serde(rename = "s")]
    started: i64,
    /// In seconds, as the times below.
    #[serde(rename = "l")]
    seen: i64,
    /// When the provider last said who this is.
    #[serde(rename = "q")]
    asked: i64,
    /// What of the action's configuration the provider was asked with.
    #[serde(rename = "c")]
    pub(crate) print: String,
    #[serde(rename = "t", default)]
    pub(crate) tokens: Tokens,
}

/// What the provider gave. Empty where it gave nothing, or it was too long to keep.
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

/// How long sessions last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spans {
    pub(crate) max: Duration,
    pub(crate) idle: Duration,
    pub(crate) refresh: Duration,
}

/// What is to be done about a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is good as it is.
    Good,
    /// The browser gets a newer one.
    Renew,
    /// The provider is asked who this is.
    Ask,
    /// It was not used for too long.
    TimedOut,
    /// It is as old as it may become.
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

    /// Seals it. Tokens that do not fit are left out, the identity token first and the refresh token
    /// last.
    pub(crate) fn seal(
        &self,
        keys: &LoginKeys,
        entropy: &dyn Entropy,
        context: &str,
    ) -> Option<String> {
        let mut fitting = self.clone();
        for step in 0..4 {
            let tokens = &mut fitting.tokens;
            match step {
                1 => tokens.identity.clear(),
                2 => tokens.access.clear(),
                3 => tokens.refresh.clear(),
                _ => {}
            }
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

    /// When it ends if it is not used again.
    pub(crate) fn ends_at(&self, spans: Spans) -> Timestamp {
        let idle = Timestamp::from_unix_seconds(self.seen).plus(spans.idle);
        self.last_end(spans).min(idle)
    }

    /// When it ends at the latest.
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

    /// It is in use.
    pub(crate) fn seen(&mut self, now: Timestamp) {
        self.seen = now.unix_seconds();
    }

    /// The provider has said who this is.
    pub(crate) fn told(&mut self, print: &str, now: Timestamp) {
        self.asked = now.unix_seconds();
        print.clone_into(&mut self.print);
    }

    /// The provider could not be asked: it is tried again after `wait`.
    pub(crate) fn postponed(&mut self, spans: Spans, print: &str, wait: Duration, now: Timestamp) {
        self.asked = now.minus(spans.refresh).plus(wait).unix_seconds();
        print.clone_into(&mut self.print);
    }

    /// When the provider was last asked; with the id, what one asking is known by.
    pub(crate) fn asked(&self) -> i64 {
        self.asked
    }

    /// Whether the access token is of no use any more.
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
        session.told("p", at(1000));
        assert_eq!(session.ends_at(spans), at(1000));
        assert_eq!(session.standing(spans, "p", at(1000)), Standing::Good);
        assert_eq!(session.standing(spans, "p", at(1001)), Standing::TooOld);
        assert!(session.is_expired(at(60)) && !session.is_expired(at(59)));
    }
}
