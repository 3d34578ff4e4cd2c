//! Requests that a policy makes on its own account: to internal endpoints, which answer as they would
//! answer a request that was forwarded to them, or to hosts elsewhere.

use std::sync::Arc;

use bytes::Bytes;
use culvert_http::target;
use http::header::{HOST, HeaderMap};
use http::{HeaderValue, Method, request, response};
use url::{Position, Url};

use crate::downstream::Downstream;
use crate::http::body::{NotHeld, Upload};
use crate::http::exchange::{Answer, Asked};
use crate::http::fields::{self, ERROR_CODE};
use crate::http::governed::{self, Passage};
use crate::http::room::Room;
use crate::http::upgrade::Wanted;
use crate::recording::Recording;
use crate::snapshot::Member;
use crate::upstream;

/// Bytes of an answer's body.
pub(crate) const ANSWER_BYTES_MAX: usize = 256 << 10;

/// What is asked. The fields are those that travel, but for the host.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Called {
    pub(crate) head: response::Parts,
    pub(crate) body: Bytes,
    pub(crate) room: Room,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotCalled {
    #[error("the URL is not supported")]
    Unusable,
    #[error("the connection closed without a response")]
    Closed,
    #[error("the response is longer than {ANSWER_BYTES_MAX} bytes")]
    TooLong,
    #[error("too many bodies are buffered")]
    NoRoom,
    #[error("the request timed out")]
    TooSlow,
    /// With nothing that tells of the network behind the name.
    #[error("the host is unreachable, or its response is invalid")]
    Elsewhere,
}

impl Called {
    /// The code of an answer that the edge itself made, rather than a policy or an upstream.
    pub(crate) fn code(&self) -> Option<&str> {
        self.head.headers.get(ERROR_CODE)?.to_str().ok()
    }
}

impl From<NotHeld> for NotCalled {
    fn from(why: NotHeld) -> Self {
        match why {
            NotHeld::TooLong => Self::TooLong,
            NotHeld::NoRoom => Self::NoRoom,
            NotHeld::TooSlow => Self::TooSlow,
            NotHeld::Broken => Self::Closed,
        }
    }
}

/// Asks an internal endpoint.
pub(crate) async fn internal(
    down: &Arc<Downstream>,
    member: Arc<Member>,
    call: Call,
) -> Result<Called, NotCalled> {
    let target = &call.url[Position::BeforePath..Position::AfterQuery];
    let authority = &call.url[Position::BeforeHost..Position::AfterPort];
    let authority = HeaderValue::from_str(authority).map_err(|_| NotCalled::Unusable)?;
    let mut parts: Box<request::Parts> = Box::new(http::Request::new(()).into_parts().0);
    parts.method = call.method;
    let target = target::settle(target, member.endpoint.merge_slashes);
    parts.uri = target.map_err(|_| NotCalled::Unusable)?.into();
    parts.headers = call.headers;
    parts.headers.insert(HOST, authority.clone());
    let asked = Asked::of(&parts);
    let passage = Passage {
        member,
        parts,
        body: Upload::made(call.body),
        authority,
        is_prepared: true,
        is_call: true,
    };
    let mut recording = Recording::aside(Arc::clone(down));
    let answer = governed::serve(&mut recording, passage, &Wanted::Http, &asked).await;
    let Answer {
        head, mut source, ..
    } = answer.map_err(|_| NotCalled::Closed)?;
    let held = source.hold(ANSWER_BYTES_MAX, down);
    let (body, room) = held.await?;
    Ok(Called { head, body, room })
}

/// Asks a host that is none of ours.
pub(crate) async fn public(down: &Arc<Downstream>, call: Call) -> Result<Called, NotCalled> {
    let dialer = down.edge.public_dialer();
    let mut room = Room::new(down);
    room.grow(ANSWER_BYTES_MAX).map_err(|_| NotCalled::NoRoom)?;
    let Call {
        method,
        url,
        headers,
        body,
    } = call;
    let answered = upstream::answer(&dialer, method, &url, headers, body, ANSWER_BYTES_MAX).await;
    let (mut head, body) = answered.map_err(|why| {
        tracing::debug!(host = url.host_str(), why, "policy request failed");
        NotCalled::Elsewhere
    })?;
    fields::to_client(&mut head.headers);
    Ok(Called { head, body, room })
}
