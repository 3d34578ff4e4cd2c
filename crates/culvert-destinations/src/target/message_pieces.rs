//! Sends the events of a batch in several requests, one after the other, as receivers of messages want.
//!
//! A request has one event or a few. If the receiver rejects one of several for its content, its halves are sent. A message
//! that may have arrived is repeated as a whole, a few times ([`Troubles`]). The rest of a batch waits for the next attempt
//! after any other failure, and when the time is over.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use serde_json::Value;
use url::Url;

use culvert_base::BoxFuture;
use culvert_base::sync::lock;
use culvert_target::batch::Batch;
use culvert_target::failure::{Failure, FailureClass};
use culvert_target::net::HttpResponse;
use culvert_target::{Outcome, Verdict};

use crate::target::http_intake::HttpIntake;
use crate::target::message::Message;
use crate::target::troubles::{NotAccepted, Troubles};
use crate::target::verdict::{is_stuck, verdict, verdict_of_line};

/// Time after which no request of a batch begins. With [`REQUEST_DEADLINE`], it is below the worker's limit.
const BEGIN_WITHIN: Duration = Duration::from_secs(15);
/// Time limit of one request.
pub(crate) const REQUEST_DEADLINE: Duration = Duration::from_secs(10);

/// Sends the events of some positions of a batch in one request.
pub(crate) trait SendsPieces: Sync {
    /// The idempotency key of the event at a position.
    fn key(&self, at: usize) -> String;

    /// Sends them once.
    fn send_piece<'a>(&'a self, events: &'a [usize]) -> BoxFuture<'a, Result<(), NotAccepted>>;
}

/// Sends pieces in order. Each event of the batch is in one of them.
pub(crate) async fn send_pieces(
    to: &impl SendsPieces,
    n_events: usize,
    pieces: Vec<Vec<usize>>,
) -> Verdict {
    let began = Instant::now();
    let mut outcomes = vec![Outcome::NotTried; n_events];
    let mut left = VecDeque::from(pieces);
    while let Some(piece) = left.pop_front() {
        let sent = to.send_piece(&piece).await;
        if sent.is_ok() {
            set(&mut outcomes, &piece, &Outcome::Delivered);
        }
        if let Err(NotAccepted {
            failure,
            given_up: Some((keys, why)),
        }) = &sent
        {
            let is_given_up = |at: &usize| keys.contains(&to.key(*at));
            let (last, others): (Vec<_>, Vec<_>) = piece.iter().partition(|at| is_given_up(at));
            set(&mut outcomes, &last, &Outcome::Failed(why.clone()));
            set(&mut outcomes, &others, &Outcome::Failed(failure.clone()));
            if !others.is_empty() {
                break;
            }
        } else if let Err(NotAccepted { mut failure, .. }) = sent {
            let is_content = matches!(failure.class, FailureClass::Permanent | FailureClass::Split);
            if is_content && piece.len() == n_events && n_events > 1 {
                // The worker divides the batch, and notes when every part fails alike.
                return Verdict::Failed(failure);
            }
            if is_content && piece.len() > 1 {
                let (first, second) = piece.split_at(piece.len() / 2);
                left.push_front(second.to_vec());
                left.push_front(first.to_vec());
            } else {
                // A single event cannot be split.
                if failure.class == FailureClass::Split {
                    failure.class = FailureClass::Permanent;
                }
                let outcome = Outcome::Failed(failure);
                set(&mut outcomes, &piece, &outcome);
                if is_stuck(&outcome) {
                    break;
                }
            }
        }
        if began.elapsed() >= BEGIN_WITHIN {
            break;
        }
    }
    match n_events {
        1 => verdict(outcomes),
        _ => in_line(outcomes),
    }
}

/// The verdict, if the first request failed for a reason other than its content, on the whole batch.
fn in_line(outcomes: Vec<Outcome>) -> Verdict {
    let stuck = outcomes.iter().find(|outcome| is_stuck(outcome));
    let others = outcomes
        .iter()
        .all(|outcome| *outcome == Outcome::NotTried || is_stuck(outcome));
    match (stuck, others) {
        (Some(Outcome::Failed(failure)), true) => Verdict::Failed(failure.clone()),
        _ => verdict_of_line(outcomes),
    }
}

fn set(outcomes: &mut [Outcome], piece: &[usize], outcome: &Outcome) {
    for at in piece {
        if let Some(place) = outcomes.get_mut(*at) {
            place.clone_from(outcome);
        }
    }
}

/// Consecutive positions in groups of which each `fits`, given the group and its next member.
pub(crate) fn grouped(
    positions: Range<usize>,
    mut fits: impl FnMut(&[usize], usize) -> bool,
) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for at in positions {
        match groups.last_mut() {
            Some(group) if fits(group, at) => group.push(at),
            _ => groups.push(vec![at]),
        }
    }
    groups
}

/// A receiver of messages as JSON over HTTP.
pub(crate) trait Posts: Sync {
    /// The interface.
    fn intake(&self) -> &HttpIntake;

    /// URL and body of the request with these messages.
    fn written(&self, messages: &[&Message]) -> Result<(Url, Value), Failure>;

    /// Whether a message can be in the request with those before it. By default, each has its own.
    fn fits(&self, _before: &[&Message], _next: &Message) -> bool {
        false
    }

    /// The messages that it may have. `None` if it knows repetitions.
    fn troubles(&self) -> Option<&Mutex<Troubles>>;

    /// The result that a response reports.
    fn judge(&self, response: &HttpResponse) -> Result<(), Failure>;
}

/// Posts a message for each event of a batch.
pub(crate) async fn post_messages(to: &impl Posts, batch: &Batch, public_base: &str) -> Verdict {
    let messages = batch.deliveries();
    let messages = messages.map(|delivery| Message::of(delivery, public_base));
    let posting = Posting {
        to,
        messages: messages.collect(),
        keys: batch
            .deliveries()
            .map(|one| one.idempotency_key())
            .collect(),
    };
    let groups = grouped(0..posting.messages.len(), |group, next| {
        let before = posting.messages_at(group);
        let next = posting.messages.get(next);
        next.is_some_and(|next| to.fits(&before, next))
    });
    send_pieces(&posting, posting.messages.len(), groups).await
}

struct Posting<'a, P> {
    to: &'a P,
    messages: Vec<Message>,
    /// Their idempotency keys.
    keys: Vec<String>,
}

impl<P> Posting<'_, P> {
    fn messages_at(&self, events: &[usize]) -> Vec<&Message> {
        let messages = events.iter().filter_map(|at| self.messages.get(*at));
        messages.collect()
    }
}

impl<P: Posts> Posting<'_, P> {
    /// Posts a message. A failure has whether the receiver may have it.
    async fn post(&self, events: &[usize]) -> Result<(), (Failure, bool)> {
        let untried = |failure| (failure, false);
        let (url, body) = self
            .to
            .written(&self.messages_at(events))
            .map_err(untried)?;
        let intake = self.to.intake();
        let request = intake.json_request(url, &body, REQUEST_DEADLINE);
        let response = intake.send(request).await.map_err(|failure| {
            let may_have_it = failure.class == FailureClass::Unknown;
            (failure, may_have_it)
        })?;
        self.to.judge(&response).map_err(|failure| {
            let may_have_it = match response.status {
                // A page is that of something before the receiver.
                200..300 => !response.text.trim_start().starts_with('<'),
                // Of a proxy that asked the receiver.
                504 => true,
                _ => false,
            };
            (failure, may_have_it)
        })
    }
}

impl<P: Posts> SendsPieces for Posting<'_, P> {
    fn key(&self, at: usize) -> String {
        self.keys.get(at).cloned().unwrap_or_default()
    }

    fn send_piece<'a>(&'a self, events: &'a [usize]) -> BoxFuture<'a, Result<(), NotAccepted>> {
        Box::pin(async move {
            let sent = self.post(events).await;
            let Some(troubles) = self.to.troubles() else {
                return sent.map_err(|(failure, _)| failure.into());
            };
            let keys = events.iter().filter_map(|at| self.keys.get(*at));
            let keys: Vec<String> = keys.cloned().collect();
            let mut troubles = lock(troubles);
            match sent {
                Ok(()) => {
                    troubles.settle(&keys);
                    Ok(())
                }
                Err((failure, true)) => Err(troubles.unconfirmed(&keys, failure)),
                Err((failure, false)) => Err(failure.into()),
            }
        })
    }
}
