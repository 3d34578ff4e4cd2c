//! A stream of the retained events as server-sent events: `GET /events?follow=true&…`.
//!
//! Each message has the ID after which the stream resumes (`Last-Event-ID`), so a reader who reconnects misses no
//! retained event. The opening and each comment have one too, for readers of a stream without messages.
//!
//! The logs are searched again after commits and every half second. A slow reader delays only its own messages: the
//! next search for it starts after it has received the results of the last one. Permissions are checked before each
//! message, and soon after each commit.
//!
//! Not here: the search (control), live tails, which show events before they are stored (`tail`).

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use culvert_base::{Class, Refusal};
use culvert_control::{Caller, Control, Error, Followed, Message, Revision, ids_of};
use futures_util::stream;
use http::Response;
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::event_stream::tail::{COMMENT, COMMENT_EVERY, OPENING, Rights, event_stream};
use crate::{Api, Arrival, Meters};
use culvert_api_http::response::answer::Body;
use culvert_api_http::response::problem::Problem;

/// Limit of open streams.
const FOLLOWERS_MAX: usize = 64;
/// Limit of open streams per owner, so that one owner cannot take them all.
const FOLLOWERS_PER_OWNER: usize = 16;
/// How often the logs are searched without a commit: traffic events are not commits.
const SEARCH_EVERY: Duration = Duration::from_millis(500);
/// Minimum time between a search and the next one that a commit causes, however many commits there are.
const NOTICE_AFTER: Duration = Duration::from_millis(100);
/// The operation in audit events.
const FOLLOW: &str = "events_list";
/// The header of a reader that resumes.
const LAST_EVENT_ID: &str = "last-event-id";

impl Api {
    /// Opens a stream of the retained events that match the query.
    pub(crate) async fn follow(
        &self,
        caller: Caller,
        is_by_cookie: bool,
        query: Vec<(String, String)>,
        mut arrival: Arrival<'_>,
    ) -> Result<Response<Body>, Problem> {
        arrival.read().await?;
        let permit = self.followers.enter(&caller.owner_id);
        let permit = permit.inspect_err(|refusal| {
            self.control.note_refused(&caller, (FOLLOW, None), refusal);
        })?;
        let last = arrival.parts.headers.get(LAST_EVENT_ID);
        // `?` is not an ID: a header that is not text is refused, because ignoring it would skip events.
        let last = last.map(|value| value.to_str().unwrap_or("?").to_owned());
        let revision = self.control.revision();
        let beginning = self
            .control
            .events
            .follow_events(&caller, &query, last.as_deref());
        let followed = tokio::time::timeout_at(arrival.deadline, beginning).await;
        let followed =
            followed.map_err(|_late| Problem::unavailable("The server is busy; try again."))?;
        let followed = followed.inspect_err(|error| {
            if let Error::Refused(refusal) = error {
                self.control.note_refused(&caller, (FOLLOW, None), refusal);
            }
        })?;
        self.control.record_followed(&caller, FOLLOW).await?;
        let shared = Arc::new(caller.clone());
        let rights = self.rights(caller, is_by_cookie, &arrival);
        self.meters.tails.fetch_add(1, Ordering::Relaxed);
        let reader = Reader {
            control: Arc::clone(&self.control),
            followed,
            caller: shared,
            rights,
            revision,
            waiting: VecDeque::new(),
            search_at: Instant::now(),
            searched_at: Instant::now(),
            comment_at: Instant::now() + COMMENT_EVERY,
            is_new: true,
            stopping: self.stopping.clone(),
            meters: Arc::clone(&self.meters),
            _permit: permit,
        };
        let frames = stream::unfold(reader, |mut reader| async move {
            let text = Box::pin(reader.next()).await?;
            Some((Ok::<_, Infallible>(Frame::data(text)), reader))
        });
        Ok(event_stream(Body::stream(StreamBody::new(frames))))
    }
}

/// The number of open streams of each owner.
#[derive(Clone, Debug, Default)]
pub(crate) struct Followers(Arc<Mutex<HashMap<String, usize>>>);

impl Followers {
    /// Counts a stream of `owner`, unless a limit is reached.
    fn enter(&self, owner: &str) -> Result<StreamPermit, Refusal> {
        let mut owners = self.owners();
        let of_owner = owners.get(owner).copied().unwrap_or(0);
        let of_all: usize = owners.values().sum();
        for (n_open, most, whose) in [
            (of_all, FOLLOWERS_MAX, "followers of events"),
            (
                of_owner,
                FOLLOWERS_PER_OWNER,
                "followers of events of one owner",
            ),
        ] {
            if n_open >= most {
                let why = format!(
                    "The limit of {most} {whose} is reached; close one or try again later."
                );
                return Err(Refusal::uncoded(Class::TooMany, why));
            }
        }
        owners.insert(owner.to_owned(), of_owner + 1);
        drop(owners);
        Ok(StreamPermit {
            followers: self.clone(),
            owner: owner.to_owned(),
        })
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A counted stream. Dropping an owner's last one removes the owner.
#[derive(Debug)]
struct StreamPermit {
    followers: Followers,
    owner: String,
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut owners = self.followers.owners();
        if let Some(n_open) = owners.get_mut(&self.owner) {
            *n_open = n_open.saturating_sub(1);
            if *n_open == 0 {
                owners.remove(&self.owner);
            }
        }
    }
}

/// One open stream.
struct Reader {
    control: Arc<Control>,
    followed: Followed,
    caller: Arc<Caller>,
    rights: Rights,
    revision: watch::Receiver<Revision>,
    /// Messages of the last search that are not sent yet.
    waiting: VecDeque<Message>,
    /// When the logs are searched again, if no commit comes before that.
    search_at: Instant,
    searched_at: Instant,
    /// When a comment is due, unless a message is sent before that.
    comment_at: Instant,
    /// Whether the opening is not sent yet.
    is_new: bool,
    stopping: CancellationToken,
    meters: Arc<Meters>,
    _permit: StreamPermit,
}

impl Reader {
    /// The next piece of the stream. `None` when the server stops, the logs cannot be read, or the caller has lost the
    /// permission.
    async fn next(&mut self) -> Option<Bytes> {
        if std::mem::take(&mut self.is_new) {
            return Some(self.comment(OPENING));
        }
        loop {
            if let Some((id, line)) = self.waiting.pop_front() {
                let text = format!("id: {id}\ndata: {line}\n\n");
                self.comment_at = Instant::now() + COMMENT_EVERY;
                return self.rights.hold().await.then(|| text.into());
            }
            // Not later than the caller's key expires: the check before the comment then ends the stream.
            let check_in = self.rights.check_in();
            self.comment_at = self.comment_at.min(Instant::now() + check_in);
            if self.comment_at <= Instant::now() {
                self.comment_at = Instant::now() + COMMENT_EVERY;
                let comment = self.comment(COMMENT);
                return self.rights.hold().await.then_some(comment);
            }
            let next = self.search_at.min(self.comment_at);
            let notices_at = self.searched_at + NOTICE_AFTER;
            let revision = &mut self.revision;
            let committed = async {
                tokio::time::sleep_until(notices_at).await;
                revision.changed().await
            };
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return None,
                changed = committed => changed.ok()?,
                () = tokio::time::sleep_until(next) => {}
            }
            if !self.rights.hold().await {
                return None;
            }
            self.search().await?;
        }
    }

    /// A comment, with the ID after which a reader resumes who has no message yet.
    fn comment(&self, text: &'static str) -> Bytes {
        match self.followed.position() {
            Some(id) => format!("id: {id}\n{text}").into(),
            None => Bytes::from_static(text.as_bytes()),
        }
    }

    async fn search(&mut self) -> Option<()> {
        self.revision.mark_unchanged();
        self.searched_at = Instant::now();
        match self.control.events.followed(&mut self.followed).await {
            Ok((messages, has_more)) => {
                // A search that read its limit of events without a match also pauses, so that a filter that rarely
                // matches does not keep the database busy.
                let goes_on = has_more && !messages.is_empty();
                let pause = if goes_on {
                    Duration::ZERO
                } else {
                    SEARCH_EVERY
                };
                if !messages.is_empty() {
                    let ids = ids_of(&messages);
                    self.control.note_followed(&self.caller, FOLLOW, ids);
                }
                self.waiting = messages.into();
                self.search_at = Instant::now() + pause;
                Some(())
            }
            Err(error) => {
                // Ends the stream. The client reconnects with its last ID.
                tracing::warn!(%error, "cannot follow events");
                None
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.meters.tails.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_owner_leaves_followers_to_others() {
        let followers = Followers::default();
        let full = |owner: &str| {
            let mut places = Vec::new();
            let refused = loop {
                match followers.enter(owner) {
                    Ok(place) => places.push(place),
                    Err(refused) => break refused,
                }
            };
            (places, refused.message)
        };
        let (mut own, refused) = full("usr_1");
        assert_eq!(own.len(), FOLLOWERS_PER_OWNER);
        assert!(refused.contains("of one owner"), "{refused}");
        let others = ["usr_2", "bot_3", "bot_4"].map(|owner| full(owner).0);
        assert_eq!(others.iter().flatten().count(), 3 * FOLLOWERS_PER_OWNER);
        let (none, refused) = full("usr_5");
        assert!(
            none.is_empty() && !refused.contains("of one owner"),
            "{refused}"
        );
        drop(others);
        own.pop();
        assert_eq!(full("usr_1").0.len(), 1);
        drop(own);
        assert!(followers.owners().is_empty());
    }
}
