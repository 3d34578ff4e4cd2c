//! The path of a plain request ([`plain_head`](crate::http::plain_head)) to an endpoint without a policy.
//!
//! It has the steps of the [pipeline](crate::http::pipeline) that can apply to such a request. Where another step might,
//! [`begin`] returns the head before anything has happened, and the pipeline serves it.

use std::sync::Arc;

use culvert_http::authority::Authority;
use culvert_http::fields::has_token;
use culvert_http::http1::head::write_response;
use culvert_http::http1::{BodyWriter, FinalHead, RawRequest, body_writer};
use culvert_overload::Level;
use culvert_policy::problem::Problem;
use culvert_policy::reply;
use culvert_traces::{TRACEPARENT, TRACESTATE};
use http::header::CONNECTION;
use http::{Method, Response, StatusCode, Version, response};

use crate::connection::downstream::Downstream;
use crate::http::exchange::{HttpExchange, can_hold_head};
use crate::http::forward::{general, send_to};
use crate::http::forward_request::{Reuse, client_body};
use crate::http::plain_head::{OutgoingHead, PlainRequest, PlainResponse};
use crate::http::request_body::{RequestBody, Upload};
use crate::http::response::{Abandoned, PendingResponse, RequestTraits};
use crate::http::response_body::{ResponseBody, Source};
use crate::http::send_response::{refuse, send};
use crate::recording::RecordedRequest;
use crate::recording::traces::begin_plain;
use crate::snapshot::group::{Group, Member};
use crate::snapshot::live_snapshot::LiveSnapshot;

/// Paths below it may be for the edge.
const WELL_KNOWN: &str = "/.well-known/";

/// An exchange that has begun.
pub(crate) struct PlainExchange {
    exchange: Box<HttpExchange>,
    request: PlainRequest,
    version: Version,
    member: Arc<Member>,
}

/// A response to a client.
pub(crate) struct ClientResponse {
    pub(crate) head: ClientHead,
    pub(crate) body: ResponseBody,
}

/// The head of a response.
pub(crate) enum ClientHead {
    Plain(PlainResponse),
    Parts(response::Parts),
}

/// A request that takes the general path.
pub(crate) struct NotPlain {
    pub(crate) raw: Box<RawRequest>,
    /// Whether the next request of the connection probably takes it too: because of the endpoint, not the head.
    pub(crate) is_likely_again: bool,
}

/// Begins the exchange of a request, if it takes this path.
pub(crate) fn begin(
    down: &Arc<Downstream>,
    raw: Box<RawRequest>,
    version: Version,
) -> Result<PlainExchange, NotPlain> {
    let not_plain = |raw| NotPlain {
        raw,
        is_likely_again: false,
    };
    let mut request = PlainRequest::of(raw, down.conn.info.is_trusted).map_err(not_plain)?;
    let held = (version == Version::HTTP_2).then(|| request.size());
    if held.is_some_and(|bytes| !can_hold_head(down, bytes)) {
        return Err(not_plain(request.into_raw()));
    }
    let live = down.edge.live.load();
    let target = request.raw().target();
    let Some((group, authority)) = find(down, &live, &request, target) else {
        return Err(NotPlain {
            raw: request.into_raw(),
            is_likely_again: true,
        });
    };
    let mut exchange = HttpExchange::begin(Arc::clone(down), version);
    if let Some(bytes) = held {
        exchange.hold_head(bytes);
    }
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let fields = request.raw().fields().iter();
    let recorded = RecordedRequest {
        method: request.raw().method(),
        path,
        normalised_path: path,
        query,
        user_agent: request.user_agent(),
        has_host: true,
        lines: fields.map(|field| (field.name, field.value)),
    };
    let member = Arc::clone(down.pick(group));
    exchange.attribute(group, &member, recorded, &authority);
    exchange.passes(&member);
    if let Some(tracing) = &down.edge.tracing {
        let reached = (down.context(), exchange.count.began(), &*member.endpoint);
        let plain = (request.raw(), version);
        if begin_plain(&mut exchange.recording, tracing, reached, plain) {
            request.leave_out(&[TRACEPARENT, TRACESTATE]);
        }
    }
    Ok(PlainExchange {
        exchange,
        request,
        version,
        member,
    })
}

/// The endpoints that a request is for, unless a step of the general path may apply to it.
fn find<'x>(
    down: &Downstream,
    live: &'x LiveSnapshot,
    request: &'x PlainRequest,
    target: &str,
) -> Option<(&'x Arc<Group>, Authority<'x>)> {
    let is_other = down.bound.get().is_some()
        || culvert_login::may_be_callback(target)
        || target.starts_with(WELL_KNOWN)
        || down.edge.state.level() == Level::Full
        || down.edge.freshness.is_outdated()
        || down.edge.judges_traces();
    if is_other {
        return None;
    }
    let authority = Authority::parse(request.host()?).ok()?;
    if !authority.is_normal() {
        return None;
    }
    let table = match down.conn.info.tls.get() {
        Some(_) if down.conn.info.sni() != authority.host => return None,
        Some(_) => &live.https,
        None => &live.http,
    };
    let group = table.find(&authority.host)?;
    group.is_plain().then_some((group, authority))
}

impl PlainExchange {
    /// Serves the request.
    pub(crate) async fn serve(self, body: Upload) -> Result<ClientResponse, Abandoned> {
        let Self {
            mut exchange,
            request,
            version,
            member,
        } = self;
        let down = Arc::clone(exchange.down());
        if body.size_hint().lower() > down.conn.rules.limits.body_bytes {
            let traits = RequestTraits::of_plain(&request, version);
            return Ok(refuse(exchange, Problem::Oversized, &traits).into());
        }
        exchange.reached(member.endpoint.timeouts);
        let body = match body {
            Upload::None => RequestBody::empty(),
            body => client_body(&mut exchange, body, false, false),
        };
        let head = OutgoingHead::Plain {
            request: &request,
            client: down.conn.info.client_value(),
            scheme: match down.conn.info.tls.get() {
                Some(_) => "https",
                None => "http",
            },
            trace: None,
        };
        let sent = send_to(&mut exchange, &member, head, body, Reuse::Anyone).await?;
        let closes = || {
            let is_closing = !request.keeps_alive || down.edge.state.is_closing();
            version != Version::HTTP_2 && is_closing
        };
        let is_head = *request.raw().method() == Method::HEAD;
        let response = match sent {
            Ok((FinalHead::Raw(raw), source)) if !is_head => {
                let date = || reply::date(&down.conn.info);
                match PlainResponse::of(raw, date) {
                    Ok(head) => return Ok(respond(exchange, head, source, closes())),
                    Err(raw) => general(FinalHead::Raw(raw), source),
                }
            }
            Ok((head, source)) => general(head, source),
            Err(problem) => Err(problem),
        };
        let traits = RequestTraits::of_plain(&request, version);
        let noted = exchange.recording.reason();
        let problem = |problem| PendingResponse::of(problem, noted, &traits, &down.conn);
        let response = match response.unwrap_or_else(problem) {
            response if response.head.status == StatusCode::SWITCHING_PROTOCOLS => {
                problem(Problem::BadAnswer)
            }
            response => response,
        };
        Ok(send(exchange, response, &traits).into())
    }
}

/// Sends a plain response.
fn respond(
    mut exchange: Box<HttpExchange>,
    mut head: PlainResponse,
    source: Source,
    closes: bool,
) -> ClientResponse {
    head.closes = closes;
    exchange.answer_with(head.status(), head.fields());
    ClientResponse {
        head: ClientHead::Plain(head),
        body: ResponseBody::new(source, exchange),
    }
}

impl From<Response<ResponseBody>> for ClientResponse {
    fn from(response: Response<ResponseBody>) -> Self {
        let (head, body) = response.into_parts();
        Self {
            head: ClientHead::Parts(head),
            body,
        }
    }
}

impl ClientHead {
    /// HTTP/1: whether the connection to the client closes after it.
    pub(crate) fn closes(&self) -> bool {
        match self {
            Self::Plain(head) => head.closes,
            Self::Parts(head) => has_token(&head.headers, &CONNECTION, b"close"),
        }
    }

    /// HTTP/1: writes it, and returns the writer for the body. `is_head` if the request's method was HEAD, `with_trailers` if the
    /// client accepts trailers.
    pub(crate) fn write(
        &self,
        out: &mut Vec<u8>,
        version: Version,
        is_head: bool,
        with_trailers: bool,
    ) -> BodyWriter {
        match self {
            Self::Plain(head) => {
                head.write(out);
                BodyWriter::Length(head.length)
            }
            Self::Parts(head) => {
                write_response(out, version, head);
                body_writer(head, is_head, with_trailers)
            }
        }
    }
}
