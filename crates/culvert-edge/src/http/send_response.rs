//! The last step of an exchange: the response goes to the client, with its record.

use std::sync::Arc;

use bytes::Bytes;
use culvert_policy::problem::Problem;
use culvert_policy::reply;
use culvert_upstream::UpstreamStream;
use http::header::{CONTENT_LENGTH, DATE, Entry, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::{Response, StatusCode, Version};
use http_body::Body;
use hyper_util::rt::TokioIo;

use crate::http::exchange::HttpExchange;
use crate::http::fields;
use crate::http::grpc;
use crate::http::response::{PendingResponse, RequestTraits};
use crate::http::response_body::{ResponseBody, Source};
use crate::http::upgrade::{self, Tunnel, UpgradeRequest};

/// Sends the response of a request, or switches protocols.
pub(super) async fn finish(
    exchange: Box<HttpExchange>,
    response: PendingResponse,
    wanted: UpgradeRequest,
    traits: &RequestTraits,
) -> Response<ResponseBody> {
    match (response.head.status, wanted) {
        (StatusCode::SWITCHING_PROTOCOLS, wanted) => {
            switch(exchange, response, &wanted, traits).await
        }
        // The client would take it for an open stream.
        (status, UpgradeRequest::Stream(_)) if status.is_success() => {
            refuse(exchange, Problem::BadAnswer, traits)
        }
        _ => send(exchange, response, traits),
    }
}

/// Sends the edge's response to a problem.
pub(super) fn refuse(
    exchange: Box<HttpExchange>,
    problem: Problem,
    traits: &RequestTraits,
) -> Response<ResponseBody> {
    let noted = exchange.recording.reason();
    let response = PendingResponse::of(problem, noted, traits, &exchange.down().conn);
    send(exchange, response, traits)
}

/// Sends a response to the client.
pub(super) fn send(
    exchange: Box<HttpExchange>,
    response: PendingResponse,
    traits: &RequestTraits,
) -> Response<ResponseBody> {
    let down = Arc::clone(exchange.down());
    let PendingResponse {
        mut head,
        source,
        closes,
        reason,
    } = response;
    if let Some(reason) = reason {
        exchange.recording.note_reason(reason);
    }
    head.extensions.clear();
    if !head.headers.contains_key(DATE) {
        head.headers.insert(DATE, reply::date(&down.conn.info));
    }
    let has_none = traits.is_head
        || matches!(
            head.status,
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        );
    if has_none && !traits.is_head {
        head.headers.remove(CONTENT_LENGTH);
    }
    let is_ended_call = match (&traits.grpc, &source) {
        (Some(content_type), Source::Edge(body)) => {
            grpc::end_call(&mut head, body, content_type.clone())
        }
        _ => false,
    };
    let source = match (has_none, is_ended_call) {
        (true, _) => Source::None,
        // The head ends the stream. HTTP/1 needs a length.
        (_, true) if traits.version == Version::HTTP_2 => Source::None,
        (_, true) => Source::Edge(Bytes::new()),
        _ => source,
    };
    let mut exchange = exchange;
    if let Source::Encoded(encoded) = &source {
        exchange.recording.encodes(encoded.coding.name());
    }
    let mut body = ResponseBody::new(source, exchange);
    if traits.version != Version::HTTP_2 {
        let length = body.size_hint().exact();
        let is_open_ended = !has_none && length.is_none();
        if let (Some(length), false) = (length, has_none) {
            // An HTTP/2 upstream may omit it.
            if let Entry::Vacant(entry) = head.headers.entry(CONTENT_LENGTH) {
                entry.insert(HeaderValue::from(length));
            }
        }
        if traits.version == Version::HTTP_11 && is_open_ended {
            head.headers
                .insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            body = body.chunked();
        }
        // HTTP/1.0 has no chunks: the close ends the body.
        let ends = traits.version == Version::HTTP_10 && is_open_ended;
        let is_last = down.edge.state.is_closing() || down.conn.http1.awaits_continue();
        let closes = closes || ends || is_last;
        traits.set_connection(&mut head.headers, closes);
    } else {
        // HTTP/2 has no such field (RFC 9113 8.2.2).
        head.headers.remove(UPGRADE);
    }
    if let Some(exchange) = body.exchange() {
        exchange.answer(head.status, &head.headers);
    }
    Response::from_parts(head, body)
}

/// Switches protocols: passes the upstream's 101 on in the form of the client's protocol, which may be that of an
/// extended CONNECT. The connection's driver does the rest.
async fn switch(
    mut exchange: Box<HttpExchange>,
    response: PendingResponse,
    wanted: &UpgradeRequest,
    traits: &RequestTraits,
) -> Response<ResponseBody> {
    let PendingResponse {
        head: mut parts,
        source,
        ..
    } = response;
    let Some(protocol) = wanted.accepted(&parts.headers) else {
        return refuse(exchange, Problem::BadAnswer, traits);
    };
    let Some((upstream, early)) = upgraded(source).await else {
        return refuse(exchange, Problem::BadAnswer, traits);
    };
    fields::to_client_hop(&mut parts.headers);
    parts.extensions.clear();
    parts.headers.remove(CONTENT_LENGTH);
    upgrade::set_upgrade(&mut parts.headers, protocol);
    exchange.answer(parts.status, &parts.headers);
    if matches!(wanted, UpgradeRequest::Stream(_)) {
        upgrade::translate_back(&mut parts);
    }
    let tunnel = Tunnel {
        upstream,
        early,
        exchange,
    };
    Response::from_parts(parts, ResponseBody::of_upgrade(Box::new(tunnel)))
}

/// The upstream's end of an upgraded connection, and the bytes behind its 101.
async fn upgraded(source: Source) -> Option<(UpstreamStream, Bytes)> {
    match source {
        Source::Http1(lease) => Some(lease.into_upgraded()),
        Source::Stream(stream) => {
            let stream = TokioIo::new(stream.await.ok()?);
            Some((UpstreamStream::carried(stream), Bytes::new()))
        }
        _ => None,
    }
}
