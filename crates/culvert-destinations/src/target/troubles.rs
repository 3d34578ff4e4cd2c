//! Events whose message the receiver may have, or puts off for its content. Neither may go on for days: the first is a
//! message more each time, and both hold up the events behind them.

use std::collections::VecDeque;
use std::time::Duration;

use culvert_base::{RetryAfter, Timestamp};
use culvert_target::failure::{Failure, FailureClass};

/// Events that are remembered; the oldest are forgotten first. Some batches of the largest size.
const EVENTS_MAX: usize = 1_024;
/// The waits after each message that the receiver may have. After as many, the next one is the last.
const UNCONFIRMED_WAITS: [Duration; 4] = [
    Duration::from_secs(10),
    Duration::from_secs(60),
    Duration::from_secs(300),
    Duration::from_secs(900),
];
/// How long, and at least how often, a message is repeated whose content the receiver puts off. Mail servers that put off
/// the mails of unknown senders accept them within five minutes.
const PUT_OFF_FOR: Duration = Duration::from_secs(900);
const PUT_OFF_MIN: u32 = 4;

/// Why a message was not accepted.
#[derive(Debug)]
pub(crate) struct NotAccepted {
    pub(crate) failure: Failure,
    /// Its events are not sent again, alone neither.
    pub(crate) is_given_up: bool,
}

impl From<Failure> for NotAccepted {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            is_given_up: false,
        }
    }
}

/// By the idempotency key of the event.
#[derive(Debug, Default)]
pub(crate) struct Troubles(VecDeque<Trouble>);

#[derive(Debug)]
struct Trouble {
    key: String,
    n_unconfirmed: usize,
    n_put_off: u32,
    put_off_since: Option<Timestamp>,
}

impl Troubles {
    /// Forgets events that were accepted.
    pub(crate) fn settle(&mut self, keys: &[String]) {
        if !self.0.is_empty() {
            self.0.retain(|trouble| !keys.contains(&trouble.key));
        }
    }

    /// A message about these events was sent, and the receiver may have it: it is repeated a few times only, after a while.
    pub(crate) fn unconfirmed(&mut self, keys: &[String], failure: Failure) -> NotAccepted {
        let mut n_before = 0;
        for key in keys {
            let trouble = self.of(key);
            n_before = n_before.max(trouble.n_unconfirmed);
            trouble.n_unconfirmed += 1;
        }
        match UNCONFIRMED_WAITS.get(n_before) {
            Some(wait) => NotAccepted::from(Failure {
                after: failure.after.or(Some(RetryAfter::new(*wait))),
                ..failure
            }),
            None => self.given_up(
                keys,
                failure,
                "the receiver may have the message, and never confirmed it",
            ),
        }
    }

    /// The receiver puts off a message about these events.
    pub(crate) fn put_off(
        &mut self,
        keys: &[String],
        failure: Failure,
        now: Timestamp,
    ) -> NotAccepted {
        let mut is_over = false;
        for key in keys {
            let trouble = self.of(key);
            trouble.n_put_off += 1;
            let since = *trouble.put_off_since.get_or_insert(now);
            is_over |= trouble.n_put_off >= PUT_OFF_MIN && now.since(since) >= PUT_OFF_FOR;
        }
        match is_over {
            false => failure.into(),
            true => self.given_up(
                keys,
                failure,
                "the receiver put off the message for its content",
            ),
        }
    }

    fn given_up(&mut self, keys: &[String], failure: Failure, why: &str) -> NotAccepted {
        self.settle(keys);
        NotAccepted {
            failure: Failure {
                class: FailureClass::Permanent,
                text: format!("{why}: {}", failure.text),
                after: None,
                ..failure
            },
            is_given_up: true,
        }
    }

    fn of(&mut self, key: &str) -> &mut Trouble {
        let at = self.0.iter().position(|trouble| trouble.key == key);
        let trouble = at
            .and_then(|at| self.0.remove(at))
            .unwrap_or_else(|| Trouble {
                key: key.to_owned(),
                n_unconfirmed: 0,
                n_put_off: 0,
                put_off_since: None,
            });
        self.0.truncate(EVENTS_MAX - 1);
        self.0.push_front(trouble);
        &mut self.0[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(keys: &[&str]) -> Vec<String> {
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    fn failure() -> Failure {
        Failure::new(FailureClass::Unknown, "c", "t")
    }

    #[test]
    fn a_message_that_may_have_arrived_is_sent_five_times() {
        let mut troubles = Troubles::default();
        let (one, both) = (keys(&["a"]), keys(&["a", "b"]));
        for wait in UNCONFIRMED_WAITS {
            let sent = troubles.unconfirmed(&both, failure());
            assert!(!sent.is_given_up);
            assert_eq!(sent.failure.after, Some(RetryAfter::new(wait)));
        }
        // In another message too.
        let last = troubles.unconfirmed(&one, failure());
        assert!(last.is_given_up && last.failure.class == FailureClass::Permanent);
        assert_eq!(last.failure.after, None);
        assert!(
            troubles
                .unconfirmed(&keys(&["b", "c"]), failure())
                .is_given_up
        );
        assert!(
            !troubles.unconfirmed(&one, failure()).is_given_up,
            "settled"
        );
        troubles.settle(&one);
        assert!(troubles.0.is_empty());
        for n in 0..3 * EVENTS_MAX {
            troubles.unconfirmed(&keys(&[&n.to_string()]), failure());
        }
        assert_eq!(troubles.0.len(), EVENTS_MAX);
    }

    #[test]
    fn a_message_is_put_off_for_a_while() {
        let mut troubles = Troubles::default();
        let at = |minutes: i64| Timestamp::from_unix_seconds(1_800_000_000 + 60 * minutes);
        let one = keys(&["a"]);
        let mut is_over = |minutes| troubles.put_off(&one, failure(), at(minutes)).is_given_up;
        assert!(!is_over(0) && !is_over(1) && !is_over(14) && is_over(15));
        // Time alone is not enough: nothing was sent in the meantime.
        assert!(!is_over(20) && !is_over(99) && !is_over(100) && is_over(101));
    }
}
