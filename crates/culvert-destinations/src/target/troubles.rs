//! Events whose message the receiver may have, or puts off for its content. Neither may go on for days: the first is a
//! message more each time, and both hold up the events behind them.

use std::collections::VecDeque;
use std::time::Duration;

use culvert_base::{RetryAfter, Timestamp};
use culvert_target::failure::{Failure, FailureClass};

/// Events that are remembered; the oldest are forgotten first. Some batches of the largest size.
const EVENTS_MAX: usize = 1_024;
/// How often a message is sent that the receiver may have, and the waits in between. They are short: others wait behind it.
const UNCONFIRMED_MAX: usize = 8;
const UNCONFIRMED_FIRST_WAIT: Duration = Duration::from_secs(10);
const UNCONFIRMED_WAIT: Duration = Duration::from_secs(60);
/// How long, and at least how often, a message is repeated whose content the receiver puts off. Mail servers that put off
/// the mails of unknown senders accept them within five minutes.
const PUT_OFF_FOR: Duration = Duration::from_secs(900);
const PUT_OFF_MIN: u32 = 4;

/// Why a message was not accepted.
#[derive(Debug)]
pub(crate) struct NotAccepted {
    pub(crate) failure: Failure,
    /// Keys of its events that are not sent again, alone neither, and why.
    pub(crate) given_up: Option<(Vec<String>, Failure)>,
}

impl From<Failure> for NotAccepted {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            given_up: None,
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
        let mut n_before = usize::MAX;
        let mut last = Vec::new();
        for key in keys {
            let trouble = self.of(key);
            n_before = n_before.min(trouble.n_unconfirmed);
            trouble.n_unconfirmed += 1;
            if trouble.n_unconfirmed >= UNCONFIRMED_MAX {
                last.push(key.clone());
            }
        }
        let wait = match n_before {
            0 => UNCONFIRMED_FIRST_WAIT,
            _ => UNCONFIRMED_WAIT,
        };
        let failure = Failure {
            // The longer one.
            after: failure.after.max(Some(RetryAfter::new(wait))),
            ..failure
        };
        let why = "the receiver may have the message, and never confirmed it";
        self.without(last, failure, why)
    }

    /// The receiver puts off a message about these events.
    pub(crate) fn put_off(
        &mut self,
        keys: &[String],
        failure: Failure,
        now: Timestamp,
    ) -> NotAccepted {
        let mut last = Vec::new();
        for key in keys {
            let trouble = self.of(key);
            trouble.n_put_off += 1;
            let since = *trouble.put_off_since.get_or_insert(now);
            if trouble.n_put_off >= PUT_OFF_MIN && now.since(since) >= PUT_OFF_FOR {
                last.push(key.clone());
            }
        }
        let why = "the receiver put off the message for its content";
        self.without(last, failure, why)
    }

    /// Gives up these events.
    fn without(&mut self, last: Vec<String>, failure: Failure, why: &str) -> NotAccepted {
        if last.is_empty() {
            return failure.into();
        }
        self.settle(&last);
        let given_up = Failure {
            class: FailureClass::Permanent,
            text: format!("{why}: {}", failure.text),
            after: None,
            ..failure.clone()
        };
        NotAccepted {
            failure,
            given_up: Some((last, given_up)),
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

    fn given_up(sent: &NotAccepted) -> Vec<&str> {
        let keys = sent.given_up.iter().flat_map(|(keys, _)| keys);
        keys.map(String::as_str).collect()
    }

    #[test]
    fn a_message_that_may_have_arrived_is_sent_a_few_times() {
        let mut troubles = Troubles::default();
        let (one, both) = (keys(&["a"]), keys(&["a", "b"]));
        for n in 1..UNCONFIRMED_MAX {
            let sent = troubles.unconfirmed(&one, failure());
            assert!(given_up(&sent).is_empty());
            let wait = if n == 1 {
                UNCONFIRMED_FIRST_WAIT
            } else {
                UNCONFIRMED_WAIT
            };
            assert_eq!(sent.failure.after, Some(RetryAfter::new(wait)));
        }
        // An event that joined it has its own count.
        let last = troubles.unconfirmed(&both, failure());
        assert_eq!(given_up(&last), ["a"]);
        let (_, why) = last.given_up.unwrap();
        assert_eq!((why.class, why.after), (FailureClass::Permanent, None));
        assert_eq!(troubles.0.len(), 1);
        // What the receiver asks for counts if it is longer.
        for (asked, waits) in [(1, 10), (99, 99)] {
            let asked = Failure {
                after: Some(RetryAfter::new(Duration::from_secs(asked))),
                ..failure()
            };
            let sent = troubles.unconfirmed(&keys(&["new", "b"]), asked);
            assert_eq!(
                sent.failure.after,
                Some(RetryAfter::new(Duration::from_secs(waits)))
            );
            troubles.settle(&keys(&["new"]));
        }
        troubles.settle(&both);
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
        let mut is_over =
            |minutes| !given_up(&troubles.put_off(&one, failure(), at(minutes))).is_empty();
        assert!(!is_over(0) && !is_over(1) && !is_over(14) && is_over(15));
        // Time alone is not enough: nothing was sent in the meantime.
        assert!(!is_over(20) && !is_over(99) && !is_over(100) && is_over(101));
    }
}
