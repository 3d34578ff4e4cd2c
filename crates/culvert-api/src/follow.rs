//! Following the kept events as server-sent events: `GET /events?follow=true&…`.
//!
//! Each message has the id behind which the stream resumes (`Last-Event-ID`), so a reader who reconnects misses
//! nothing that is kept. The logs are searched again after each commit and every half second. A slow reader
//! delays its own messages alone: nothing is read for it before it took what was sent.
//!
//! Not here: the search (control), live tails, which show events before they are kept (`tail`).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use culvert_base::{Class, Refusal};
use culvert_control::{Caller, Control, Followed, Message};
use futures_util::stream;
use http::Response;
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::answer::Body;
use crate::problem::Problem;
use crate::tail::{COMMENT, COMMENT_EVERY, OPENING, Rights, event_stream};
use crate::{Api, Arrival, Meters};

/// Limit of open streams of kept events.
pub(crate) const FOLLOWERS_MAX: usize = 64;
/// How often the logs are searched for what came without a commit of this node.
const SEARCH_EVERY: Duration = Duration::from_millis(500);
/// The header of a reader that resumes.
const LAST_EVENT_ID: &str = "last-event-id";

impl Api {
    /// Opens a stream of the kept events that match the query.
    pub(crate) async fn follow(
        &self,
        caller: Caller,
        is_by_cookie: bool,
        query: Vec<(String, String)>,
        mut arrival: Arrival<'_>,
    ) -> Result<Response<Body>, Problem> {
        arrival.read().await?;
        let permit = Arc::clone(&self.followers).try_acquire_owned();
        let permit = permit.map_err(|_full| {
            Refusal::uncoded(
                Class::TooMany,
                format!(
                    "The limit of {FOLLOWERS_MAX} followers of events is reached; close one or try again later."
                ),
            )
        })?;
        let last = arrival.parts.headers.get(LAST_EVENT_ID);
        let last = last.map(|value| value.to_str().unwrap_or("?").to_owned());
        let revision = self.control.revision();
        let beginning = self.control.follow_events(&caller, &query, last.as_deref());
        let followed = tokio::time::timeout_at(arrival.deadline, beginning).await;
        let followed =
            followed.map_err(|_late| Problem::unavailable("The server is busy; try again."))??;
        let rights = self.rights(caller, is_by_cookie, &arrival);
        self.meters.tails.fetch_add(1, Ordering::Relaxed);
        let reader = Reader {
            control: Arc::clone(&self.control),
            followed,
            rights,
            revision,
            waiting: VecDeque::new(),
            searches_at: Instant::now(),
            comments_at: Instant::now() + COMMENT_EVERY,
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

/// One open stream.
struct Reader {
    control: Arc<Control>,
    followed: Followed,
    rights: Rights,
    revision: watch::Receiver<i64>,
    waiting: VecDeque<Message>,
    searches_at: Instant,
    comments_at: Instant,
    is_new: bool,
    stopping: CancellationToken,
    meters: Arc<Meters>,
    _permit: OwnedSemaphorePermit,
}

impl Reader {
    /// The next piece of the stream; `None` at the server's stop, when the logs cannot be read, and when the
    /// caller may no longer follow.
    async fn next(&mut self) -> Option<Bytes> {
        if std::mem::take(&mut self.is_new) {
            return Some(Bytes::from_static(OPENING.as_bytes()));
        }
        loop {
            if let Some((id, line)) = self.waiting.pop_front() {
                let text = format!("id: {id}\ndata: {line}\n\n");
                self.comments_at = Instant::now() + COMMENT_EVERY;
                return self.rights.hold().await.then(|| text.into());
            }
            if self.comments_at <= Instant::now() {
                self.comments_at = Instant::now() + COMMENT_EVERY;
                let comment = Bytes::from_static(COMMENT.as_bytes());
                return self.rights.hold().await.then_some(comment);
            }
            let next = self.searches_at.min(self.comments_at);
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return None,
                changed = self.revision.changed() => changed.ok()?,
                () = tokio::time::sleep_until(next) => {}
            }
            self.search().await?;
        }
    }

    async fn search(&mut self) -> Option<()> {
        self.revision.mark_unchanged();
        match self.control.followed(&mut self.followed).await {
            Ok((messages, has_more)) => {
                // A search that finds nothing among many events leaves room for other work.
                let goes_on = has_more && !messages.is_empty();
                let pause = if goes_on {
                    Duration::ZERO
                } else {
                    SEARCH_EVERY
                };
                self.waiting = messages.into();
                self.searches_at = Instant::now() + pause;
                Some(())
            }
            Err(error) => {
                // The reader resumes when the store is back.
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
