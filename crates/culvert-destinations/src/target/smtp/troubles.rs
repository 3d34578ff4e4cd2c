//! Mails that the server took and did not confirm, or puts off for their content. Neither may go on for days: the first is a
//! mail more each time, and both hold up the mails behind them.

use std::collections::VecDeque;
use std::time::Duration;

use culvert_base::Timestamp;

use crate::failure::{Failure, FailureClass};

/// Mails that are remembered; the oldest are forgotten first.
const MAILS_MAX: usize = 64;
/// How often a mail is sent that the server may have.
const UNCONFIRMED_MAX: u32 = 3;
/// How long a mail is repeated whose content the server puts off. Servers that put off the mails of unknown senders accept
/// them within five minutes.
const PUT_OFF_FOR: Duration = Duration::from_secs(900);

/// By Message-ID.
#[derive(Debug, Default)]
pub(super) struct Troubles(VecDeque<Trouble>);

#[derive(Debug)]
struct Trouble {
    id: String,
    first_at: Timestamp,
    n_unconfirmed: u32,
}

/// Whether the server has the trouble, and not the mail: it shuts down, or its disk is full (RFC 5321, 4.2.3).
fn is_about_server(failure: &Failure) -> bool {
    matches!(failure.code.as_ref(), "421" | "452")
}

impl Troubles {
    /// Forgets a mail that was accepted.
    pub(super) fn settle(&mut self, id: &str) {
        self.0.retain(|trouble| trouble.id != id);
    }

    /// The failure of a mail that was sent: it is permanent if the mail was repeated often or long enough.
    pub(super) fn failed(&mut self, id: &str, failure: Failure, now: Timestamp) -> Failure {
        let is_unconfirmed = failure.class == FailureClass::Unknown;
        let is_put_off = failure.class == FailureClass::Retryable && !is_about_server(&failure);
        if !is_unconfirmed && !is_put_off {
            return failure;
        }
        if !self.0.iter().any(|trouble| trouble.id == id) {
            self.0.truncate(MAILS_MAX - 1);
            self.0.push_front(Trouble {
                id: id.to_owned(),
                first_at: now,
                n_unconfirmed: 0,
            });
        }
        let Some(trouble) = self.0.iter_mut().find(|trouble| trouble.id == id) else {
            return failure;
        };
        trouble.n_unconfirmed += u32::from(is_unconfirmed);
        let is_over = match is_unconfirmed {
            true => trouble.n_unconfirmed >= UNCONFIRMED_MAX,
            false => now.since(trouble.first_at) >= PUT_OFF_FOR,
        };
        if !is_over {
            return failure;
        }
        self.settle(id);
        let said = &failure.text;
        let text = match is_unconfirmed {
            true => format!("the server may have the mail, and never confirmed it: {said}"),
            false => format!("the server put off the mail for its content: {said}"),
        };
        Failure {
            class: FailureClass::Permanent,
            text,
            ..failure
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mail_is_not_repeated_for_days() {
        let mut troubles = Troubles::default();
        let at = |minutes: i64| Timestamp::from_unix_seconds(1_800_000_000 + 60 * minutes);
        let mut fail = |id: &str, class, minutes| {
            let code = if id == "full" { "452" } else { "451" };
            let failure = Failure::new(class, code, "t");
            troubles.failed(id, failure, at(minutes)).class
        };
        let [unknown, retryable] = [FailureClass::Unknown, FailureClass::Retryable];
        assert_eq!(fail("a", unknown, 0), unknown);
        assert_eq!(fail("b", unknown, 0), unknown);
        assert_eq!(fail("a", unknown, 1), unknown);
        assert_eq!(fail("a", unknown, 2), FailureClass::Permanent);
        assert_eq!(fail("b", unknown, 2), unknown);
        assert_eq!(fail("c", retryable, 0), retryable);
        assert_eq!(fail("c", retryable, 14), retryable);
        assert_eq!(fail("c", retryable, 15), FailureClass::Permanent);
        assert_eq!(fail("full", retryable, 0), retryable);
        assert_eq!(fail("full", retryable, 99), retryable);
        // Such as credentials: the whole destination waits.
        assert_eq!(fail("c", FailureClass::Auth, 99), FailureClass::Auth);
        for n in 0..200 {
            fail(&n.to_string(), retryable, 0);
        }
        assert_eq!(troubles.0.len(), MAILS_MAX);
        troubles.settle("199");
        assert_eq!(troubles.0.len(), MAILS_MAX - 1);
    }
}
