//! The live event tail as server-sent events: `GET /events/tail?type=…&filter=…&fields=…`. Any node of an
//! installation sends the events of all nodes.
//!
//! Each event is one message, whose data is the event's envelope on one line. A reader that is too slow misses
//! events, and receives a message `lost` with their number. After a period without data, a comment is sent, so that
//! proxies keep the connection open. The stream ends with the client's connection, when the server stops, or when its
//! caller loses the permission. Permissions are checked after every change of the store, before the next event is
//! sent.
//!
//! Delivery, through control, selects events and limits the number of tails.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use culvert_base::{Refusal, Secret, code};
use culvert_control::{Caller, Control, Revision, Tail, TailSpec, Tailed};
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{Api, Arrival, Meters};
use culvert_api_http::query;
use culvert_api_http::response::answer::{Body, NO_STORE};
use culvert_api_http::response::problem::Problem;

pub(crate) const COMMENT_EVERY: Duration = Duration::from_secs(15);
pub(crate) const OPENING: &str = ": following\n\n";
pub(crate) const COMMENT: &str = ": still here\n\n";
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");

impl Api {
    /// Opens a tail and returns its stream.
    pub(crate) async fn tail(
        &self,
        caller: Caller,
        is_by_cookie: bool,
        mut arrival: Arrival<'_>,
    ) -> Result<Response<Body>, Problem> {
        arrival.read().await?;
        let spec = spec(arrival.parts.uri.query().unwrap_or_default())?;
        let tail = self.control.events.tail(&caller, spec);
        let tail = tail.inspect_err(|refusal| {
            self.control
                .note_refused(&caller, (crate::TAIL, None), refusal)
        })?;
        self.control.record_followed(&caller, crate::TAIL).await?;
        let shared = Arc::new(caller.clone());
        let rights = self.rights(caller, is_by_cookie, &arrival);
        self.meters.tails.fetch_add(1, Ordering::Relaxed);
        let reader = Reader {
            control: Arc::clone(&self.control),
            caller: shared,
            tail,
            rights,
            stopping: self.stopping.clone(),
            meters: Arc::clone(&self.meters),
            is_new: true,
        };
        let frames = stream::unfold(reader, |mut reader| async move {
            let text = reader.next().await?;
            Some((Ok::<_, Infallible>(Frame::data(text)), reader))
        });
        Ok(event_stream(Body::stream(StreamBody::new(frames))))
    }

    /// The rights of a stream's caller, as of now.
    pub(crate) fn rights(
        &self,
        caller: Caller,
        is_by_cookie: bool,
        arrival: &Arrival<'_>,
    ) -> Rights {
        let cookie = is_by_cookie.then(|| self.session_cookie(arrival)).flatten();
        let mut revision = self.control.revision();
        // A commit since the caller was authenticated may have ended the permission.
        revision.mark_changed();
        Rights {
            revision,
            checked_at: Instant::now(),
            address: self.client(arrival),
            cookie: cookie.map(|cookie| Secret::new(cookie.to_owned())),
            control: Arc::clone(&self.control),
            caller,
        }
    }
}

/// A response whose body is a stream of server-sent events.
pub(crate) fn event_stream(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, EVENT_STREAM);
    headers.insert(CACHE_CONTROL, NO_STORE);
    response
}

fn spec(query: &str) -> Result<TailSpec, Refusal> {
    let mut spec = TailSpec::default();
    for (name, value) in query::parse(query)? {
        match name.as_str() {
            "type" => spec.kinds.extend(listed(&value)),
            "fields" => spec.fields.extend(listed(&value)),
            "filter" if spec.filter.is_empty() => spec.filter = value,
            "filter" => return Err(Refusal::of(code::QUERY_PARAMETER_REPEATED)),
            _ => return Err(Refusal::of(code::QUERY_PARAMETER_UNKNOWN)),
        }
    }
    Ok(spec)
}

/// Splits values that are joined by commas.
fn listed(value: &str) -> impl Iterator<Item = String> {
    value
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
}

/// The permissions of a stream's caller.
pub(crate) struct Rights {
    control: Arc<Control>,
    /// The caller when the stream was opened.
    caller: Caller,
    address: IpAddr,
    /// The cookie of the console's session, if the stream was opened with it.
    cookie: Option<Secret>,
    revision: watch::Receiver<Revision>,
    checked_at: Instant,
}

impl Rights {
    /// Whether the caller still has the permission. Checks again only after a commit, or after a while, because
    /// sessions expire.
    pub(crate) async fn hold(&mut self) -> bool {
        if self.has_ended() {
            return false;
        }
        let is_old = self.checked_at.elapsed() >= COMMENT_EVERY;
        if !is_old && !self.revision.has_changed().unwrap_or(false) {
            return true;
        }
        self.revision.mark_unchanged();
        self.checked_at = Instant::now();
        let now = match &self.cookie {
            None => {
                self.control
                    .identity
                    .caller_again(&self.caller, self.address)
                    .await
            }
            Some(cookie) => {
                let session = self
                    .control
                    .identity
                    .console_session(cookie.reveal(), self.address);
                session.await.map(|session| session.caller)
            }
        };
        // If permissions cannot be read, access ends: another node may have revoked them.
        now.is_ok_and(|now| {
            now.owner_id == self.caller.owner_id
                && now.role == self.caller.role
                && now.restrictions == self.caller.restrictions
        })
    }

    /// Whether the caller's key, or its token, has expired.
    fn has_ended(&self) -> bool {
        self.caller
            .ends_at()
            .is_some_and(|end| end <= self.control.now())
    }

    /// Time until the next check of a stream without events: until a comment is due or the key expires.
    pub(crate) fn check_in(&self) -> Duration {
        self.caller.ends_at().map_or(COMMENT_EVERY, |end| {
            end.since(self.control.now()).min(COMMENT_EVERY)
        })
    }
}

/// An open stream.
struct Reader {
    control: Arc<Control>,
    caller: Arc<Caller>,
    tail: Tail,
    rights: Rights,
    stopping: CancellationToken,
    meters: Arc<Meters>,
    is_new: bool,
}

impl Reader {
    /// The next part of the stream; `None` when the server stops or the caller has lost the permission.
    async fn next(&mut self) -> Option<Bytes> {
        // Confirms immediately that the stream is open, before the first event.
        if std::mem::take(&mut self.is_new) {
            return Some(Bytes::from_static(OPENING.as_bytes()));
        }
        let text = tokio::select! {
            biased;
            () = self.stopping.cancelled() => return None,
            next = self.tail.next() => match next {
                Tailed::Event(line) => {
                    self.control.note_followed(&self.caller, crate::TAIL, Vec::new());
                    format!("data: {line}\n\n").into()
                }
                Tailed::Lost(n) => format!("event: lost\ndata: {{\"lost\":{n}}}\n\n").into(),
            },
            () = tokio::time::sleep(self.rights.check_in()) => Bytes::from_static(COMMENT.as_bytes()),
        };
        self.rights.hold().await.then_some(text)
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
    fn what_is_followed_stands_in_the_query() {
        let asked =
            spec("type=a.v0&type=b.v0,c.v0&filter=ev.x%3D%3D1&fields=p,q&fields=r").unwrap();
        assert_eq!(asked.kinds, ["a.v0", "b.v0", "c.v0"]);
        assert_eq!(asked.filter, "ev.x==1");
        assert_eq!(asked.fields, ["p", "q", "r"]);
        assert!(spec("").unwrap().kinds.is_empty());
        for (query, code) in [
            ("types=a", code::QUERY_PARAMETER_UNKNOWN),
            ("filter=a&filter=b", code::QUERY_PARAMETER_REPEATED),
            ("type=%zz", code::QUERY_UNREADABLE),
        ] {
            assert_eq!(spec(query).unwrap_err().code, Some(code), "{query}");
        }
    }
}
