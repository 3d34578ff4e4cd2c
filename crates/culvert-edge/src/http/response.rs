//! A response before it is sent to the client.

use std::sync::Arc;

use bytes::Bytes;
use culvert_base::Share;
use culvert_edge_config::Endpoint;
use culvert_events::Reason;
use culvert_http::coding::{self, Coding};
use culvert_http::fields::has_token;
use culvert_overload::Level;
use culvert_policy::policy::edits::Replacement;
use culvert_policy::policy::replace::{self, NotReplaced};
use culvert_policy::problem::Problem;
use culvert_policy::reply::ReplyContext;
use http::header::{
    ACCEPT, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, RETRY_AFTER,
    UPGRADE,
};
use http::uri::Authority;
use http::{Extensions, Method, Response, StatusCode, Version, request, response};

use crate::connection::conn_state::ConnState;
use crate::http::body_memory::NotBuffered;
use crate::http::encoded::Encoded;
use crate::http::grpc;
use crate::http::maintenance;
use crate::http::plain_head::PlainRequest;
use crate::http::response_body::Source;

/// The connection closes without a response.
#[derive(Debug, thiserror::Error)]
#[error("the request was cancelled")]
pub(crate) struct Abandoned;

/// The properties of a request that its response depends on.
pub(super) struct RequestTraits {
    pub(super) version: Version,
    pub(super) is_head: bool,
    /// The content type of a call of gRPC: errors of the edge are in its form.
    pub(super) grpc: Option<HeaderValue>,
    /// HTTP/1: whether the connection stays open.
    pub(super) keeps_alive: bool,
    accept: Option<HeaderValue>,
    /// The host, in the target or in its field, if there is an `accept` field: for pages.
    authority: Option<Authority>,
    host: Option<HeaderValue>,
}

/// A response before it is sent: its head, its body, and whether the connection closes after it.
pub(super) struct PendingResponse {
    pub(super) head: response::Parts,
    pub(super) source: Source,
    pub(super) closes: bool,
    /// Why the edge made it, if there was a problem.
    pub(super) reason: Option<Reason>,
}

impl PendingResponse {
    /// The edge's response to a problem. `noted` is the reason in the event so far, which says more than the problem.
    pub(super) fn of(
        problem: Problem,
        noted: Option<Reason>,
        traits: &RequestTraits,
        conn: &ConnState,
    ) -> Self {
        let to = ReplyContext {
            cause: noted,
            ..traits.reply_context(conn)
        };
        Self {
            closes: matches!(
                problem.status(),
                StatusCode::BAD_REQUEST | StatusCode::REQUEST_TIMEOUT
            ),
            reason: problem.reason(),
            ..Self::whole(problem.answer(&to))
        }
    }

    /// The response of an endpoint in maintenance to a request with these extensions; `None` if the request goes on.
    pub(super) fn of_maintenance(
        endpoint: &Endpoint,
        request: &Extensions,
        traits: &RequestTraits,
        conn: &ConnState,
    ) -> Option<Self> {
        let state = endpoint.maintenance.as_deref()?;
        let (client, is_tls) = (conn.info.client.ip(), conn.info.tls.get().is_some());
        if maintenance::lets_pass(state, request, client, is_tls) {
            return None;
        }
        let mut response = match &state.page {
            Some((text, media)) => Self::whole(maintenance::page(text, media)),
            None => Self::of(Problem::Maintenance, None, traits, conn),
        };
        let status = StatusCode::from_u16(state.status);
        response.head.status = status.unwrap_or(response.head.status);
        let seconds = HeaderValue::from(state.retry_after.as_secs());
        response.head.headers.insert(RETRY_AFTER, seconds);
        response.reason = Some(Reason::Maintenance);
        Some(response)
    }

    /// A whole response that a policy or the edge made.
    pub(super) fn whole(answer: Response<Bytes>) -> Self {
        let (head, body) = answer.into_parts();
        Self {
            head,
            source: Source::Edge(body),
            closes: false,
            reason: None,
        }
    }

    /// Encodes its body with the negotiated coding, if the response may be encoded and the encoders have memory left. Its
    /// fields say that others may get another coding, and those of HEAD and of 304 (Not Modified) are those of GET.
    pub(super) fn encode(
        &mut self,
        share: Share,
        coding: Option<Coding>,
        traits: &RequestTraits,
        conn: &ConnState,
    ) {
        if !coding::may_change(&self.head.headers) {
            return;
        }
        let is_unchanged = self.head.status == StatusCode::NOT_MODIFIED;
        let is_part = self.head.status == StatusCode::PARTIAL_CONTENT;
        if !is_unchanged && !is_part && !coding::has_body(&self.head) {
            return;
        }
        // The text of an error goes into the head of a call.
        if traits.grpc.is_some() && matches!(self.source, Source::Edge(_)) {
            return;
        }
        coding::vary(&mut self.head.headers);
        let Some(coding) = coding.filter(|_| !is_part) else {
            return;
        };
        if is_unchanged {
            return coding::weaken(&mut self.head.headers);
        }
        if traits.is_head {
            return coding::set_fields(&mut self.head.headers, coding);
        }
        // Under load, new responses are not compressed; running ones finish.
        let edge = &conn.edge;
        if self.source.is_ended() || edge.level() >= Level::Busy {
            return;
        }
        let kib = usize::try_from(coding.kib()).unwrap_or(usize::MAX);
        let room = edge.encoders.try_acquire_many(share, kib);
        let Ok(room) = room else { return };
        coding::set_fields(&mut self.head.headers, coding);
        let source = std::mem::replace(&mut self.source, Source::None);
        self.source = Source::Encoded(Box::new(Encoded::new(source, coding, room)));
    }

    /// Replaces parts of its body, unless the body is partial or a stream.
    pub(super) async fn replace(
        &mut self,
        share: Share,
        replacements: &[Replacement],
        conn: &Arc<ConnState>,
    ) -> Result<(), Problem> {
        let is_whole = self.head.status != StatusCode::PARTIAL_CONTENT
            && self.head.status != StatusCode::SWITCHING_PROTOCOLS
            && !culvert_http::fields::is_event_stream(&self.head.headers)
            // The status of a call is behind its body.
            && !culvert_http::fields::is_grpc(&self.head.headers);
        if !is_whole || self.source.is_ended() {
            return Ok(());
        }
        let is_edges = matches!(self.source, Source::Edge(_));
        let held = self.source.hold(share, replace::BODY_BYTES_MAX, conn);
        let (bytes, room) = held.await.map_err(|why| match why {
            NotBuffered::TooLong => Problem::AnswerTooLong,
            NotBuffered::MemoryFull => Problem::NoRoom,
            NotBuffered::TooSlow => Problem::UpstreamTooSlow,
            NotBuffered::Broken | NotBuffered::Coding => Problem::BadAnswer,
        })?;
        let made = replace::apply(replacements, &mut self.head.headers, bytes.clone());
        let made = match made {
            Ok(made) => made,
            Err(NotReplaced::TooLong) => return Err(Problem::AnswerTooLong),
            // The upstream chose the coding.
            Err(NotReplaced::Coding) => bytes,
        };
        self.head
            .headers
            .insert(CONTENT_LENGTH, HeaderValue::from(made.len()));
        self.source = match is_edges {
            // Those of the edge are in memory anyway.
            true => Source::Edge(made),
            false => Source::Held {
                bytes: made,
                _room: room,
            },
        };
        Ok(())
    }
}

impl RequestTraits {
    pub(super) fn of(parts: &request::Parts) -> Self {
        let accept = parts.headers.get(ACCEPT).cloned();
        let content_type = parts.headers.get(CONTENT_TYPE);
        let authority = accept.as_ref().and_then(|_| parts.uri.authority());
        let host = accept.as_ref().and_then(|_| parts.headers.get(HOST));
        Self {
            version: parts.version,
            is_head: parts.method == Method::HEAD,
            grpc: grpc::call_type(
                parts.version,
                &parts.method,
                content_type.map(HeaderValue::as_bytes),
            ),
            keeps_alive: if parts.version == Version::HTTP_10 {
                has_token(&parts.headers, &CONNECTION, b"keep-alive")
            } else {
                !has_token(&parts.headers, &CONNECTION, b"close")
            },
            authority: authority.cloned(),
            host: host.cloned(),
            accept,
        }
    }

    /// Those of a plain request on HTTP/1.1 or HTTP/2.
    pub(super) fn of_plain(request: &PlainRequest, version: Version) -> Self {
        let value = |bytes: &[u8]| HeaderValue::from_bytes(bytes).ok();
        let accept = request.accept().and_then(value);
        let host = request.host().filter(|_| accept.is_some());
        let mut fields = request.raw().fields().iter();
        let content_type = fields.find(|field| field.is(CONTENT_TYPE.as_str()));
        Self {
            version,
            is_head: *request.raw().method() == Method::HEAD,
            grpc: grpc::call_type(
                version,
                request.raw().method(),
                content_type.map(|field| field.value),
            ),
            keeps_alive: request.keeps_alive,
            authority: None,
            host: host.and_then(|host| value(host.as_bytes())),
            accept,
        }
    }

    /// What the edge's response to the request depends on.
    fn reply_context<'x>(&'x self, conn: &'x ConnState) -> ReplyContext<'x> {
        let host = match (&self.authority, &self.host) {
            (Some(authority), _) => authority.as_str(),
            (None, Some(host)) => host.to_str().unwrap_or_default(),
            (None, None) => "",
        };
        conn.reply_context(self.accept.as_ref(), host)
    }

    /// Sets the `connection` field of a response on HTTP/1 (RFC 9112 9.3). The event has it as it was sent.
    pub(super) fn set_connection(&self, headers: &mut HeaderMap, closes: bool) {
        let is_upgrade = headers.contains_key(UPGRADE);
        let value = match self.version {
            Version::HTTP_2 => return,
            // RFC 9110 7.8: the field `upgrade` is one of the hop.
            _ if closes || !self.keeps_alive => match is_upgrade {
                true => "upgrade, close",
                false => "close",
            },
            Version::HTTP_10 => match is_upgrade {
                true => "upgrade, keep-alive",
                false => "keep-alive",
            },
            _ if is_upgrade => "upgrade",
            _ => return,
        };
        headers.insert(CONNECTION, HeaderValue::from_static(value));
    }
}
