//! One HTTP request and its answer: found, checked, forwarded, recorded.
//!
//! The order is fixed: authority, endpoint, what the edge itself refuses, the request phase of the
//! endpoint's policy, upstream, the response phase, answer. Whatever ends it, dropping the
//! [`Recording`] completes its event.

use std::sync::Arc;

use bytes::Bytes;
use culvert_http::authority::Authority;
use culvert_http::coding::{self, Coding};
use culvert_http::fields::{has_token, is_grpc, join_cookies};
use culvert_http::http1::Violation;
use culvert_http::http2::{self, Refused};
use culvert_http::target::{self, Received};
use culvert_policy::conn::TlsInfo;
use culvert_policy::policy::edits::Edits;
use culvert_policy::problem::Problem;
use culvert_policy::reply;
use http::header::{
    ACCEPT, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, DATE, EXPECT, Entry, HOST, HeaderMap,
    HeaderValue, LOCATION, TE, TRANSFER_ENCODING,
};
use http::{Method, Response, StatusCode, Version, request, response};
use http_body::Body;
use hyper_util::rt::TokioIo;

use crate::downstream::Downstream;
use crate::http::body::{RequestBody, ResponseBody, Source, Upload};
use crate::http::encoded::Encoded;
use crate::http::fields;
use crate::http::forward;
use crate::http::policy_pipeline::{self, ForwardRequest};
use crate::http::upgrade::{self, Tunnel, Wanted};
use crate::http::upload::{UploadPace, UploadWatch};
use crate::http1_state::Broken;
use crate::overload::Level;
use crate::recording::Recording;
use crate::snapshot::group::{Group, Member};
use crate::snapshot::live::Live;
use crate::upstream::agent::AgentRefused;
use crate::upstream::pool::Failure;
use crate::upstream::url::{DialError, Protocol, UpWire};

/// The connection is to be closed without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the request was cancelled")]
pub(crate) struct Abandoned;

/// What an answer still needs to know of a request that has moved on.
pub(super) struct Asked {
    version: Version,
    pub(super) is_head: bool,
    /// HTTP/1: whether the client would send another request on the connection.
    stays: bool,
    accept: Option<HeaderValue>,
}

/// An answer that is not yet the client's: its head, its body, and whether the connection ends with
/// it.
pub(super) struct Answer {
    pub(super) head: response::Parts,
    pub(super) source: Source,
    closes: bool,
}

/// Answers one request.
pub(crate) async fn serve(
    down: Arc<Downstream>,
    mut parts: Box<request::Parts>,
    body: Upload,
) -> Result<Response<ResponseBody>, Abandoned> {
    let mut recording = Recording::begin(Arc::clone(&down), parts.version);
    let asked = Asked::of(&parts);
    if let Some(Refused(violation)) = parts.extensions.get() {
        down.edge.meters.requests_refused.up();
        let problem = Problem::Violation(*violation);
        return Ok(refuse(recording, problem, &asked));
    }
    if asked.version == Version::HTTP_2 && !recording.hold_head(&parts) {
        let problem = Problem::Violation(Violation::FieldsTooLarge);
        return Ok(refuse(recording, problem, &asked));
    }
    if let Some(file) = challenge(&down, &parts) {
        return Ok(prove(recording, file, &asked));
    }
    if let Some(answer) = forwarded_callback(&down, &parts) {
        return Ok(send(recording, Answer::made(answer), &asked));
    }
    if down.edge.level() == Level::Full {
        down.edge.meters.shed_requests.up();
        return Ok(refuse(recording, Problem::Overloaded, &asked));
    }
    let found = merge_slashes(&down, &mut parts).and_then(|()| find(&down, &mut recording, &parts));
    let (member, authority) = match found {
        Ok(Found::Here(member, authority)) => (member, authority),
        Ok(Found::Redirect(answer)) => {
            return Ok(send(recording, Answer::made(answer), &asked));
        }
        Err(problem) => return Ok(refuse(recording, problem, &asked)),
    };
    // Events tell what came; policies see what is sent.
    fields::strip_mixed_up(&mut parts.headers, down.rules.underscore_headers);
    if body.size_hint().lower() > down.rules.limits.body_bytes {
        return Ok(refuse(recording, Problem::Oversized, &asked));
    }
    let wanted = upgrade::wanted(&parts, !body.is_ended());
    let is_governed = member.endpoint.policy.is_some();
    recording.reached(member.endpoint.timeouts);
    let forward_request = ForwardRequest {
        member,
        parts,
        body,
        authority,
        is_prepared: false,
        is_call: false,
    };
    let answer = if is_governed {
        // In a box: endpoints without a policy keep no room for one.
        Box::pin(policy_pipeline::serve(
            &mut recording,
            forward_request,
            &wanted,
            &asked,
        ))
        .await?
    } else {
        let sent = match check(&forward_request.parts, &wanted) {
            Ok(()) => {
                let member = Arc::clone(&forward_request.member);
                let (parts, body) = outgoing(&mut recording, forward_request, &wanted, None);
                forward(&member, &mut recording, parts, body).await?
            }
            Err(problem) => Err(problem),
        };
        sent.unwrap_or_else(|problem| Answer::of(problem, &asked, &down))
    };
    Ok(finish(recording, answer, wanted, &asked).await)
}

/// Makes a client's request our own, unless that is done.
pub(super) fn prepare(forward_request: &mut ForwardRequest, down: &Downstream, wanted: &Wanted) {
    if std::mem::replace(&mut forward_request.is_prepared, true) {
        return;
    }
    let parts = &mut forward_request.parts;
    if let Wanted::Stream(key) = wanted {
        upgrade::translate(parts, key);
    }
    fields::to_upstream(
        &mut parts.headers,
        &down.info,
        forward_request.authority.clone(),
    );
    if parts.version == Version::HTTP_2 {
        join_cookies(&mut parts.headers);
    }
}

/// The request as the upstream gets it.
pub(super) fn outgoing(
    recording: &mut Recording,
    mut forward_request: ForwardRequest,
    wanted: &Wanted,
    edits: Option<Edits>,
) -> (Box<request::Parts>, RequestBody) {
    prepare(&mut forward_request, recording.down(), wanted);
    let ForwardRequest {
        mut parts,
        body,
        member,
        ..
    } = forward_request;
    if *wanted != Wanted::Http {
        upgrade::ask(&mut parts.headers);
    }
    if let Some(mut edits) = edits {
        edits.apply_to_request(&mut parts.headers);
        if let Some(target) = edits.target {
            parts.uri = target;
        }
    }
    let is_client = matches!(body, Upload::Http1(_) | Upload::Http2(_));
    if !is_client {
        // What a policy sends is the operator's.
        return (parts, RequestBody::new(body, None, None).underscores(None));
    }
    let over = recording.down().rules.limits.body_rate_over;
    // A call's stream costs an upstream little; a request on HTTP/1 holds a whole connection of it.
    let is_call = parts.version == Version::HTTP_2
        && is_grpc(&parts.headers)
        && has_token(&parts.headers, &TE, b"trailers")
        && member
            .pool
            .as_ref()
            .is_some_and(|pool| pool.upstream().protocol() == Protocol::Http2);
    let pace = recording.watch_upload(is_call);
    let keeps_underscores = recording.down().rules.underscore_headers;
    let body = RequestBody::new(body, recording.count_received(), recording.cap())
        .cut(recording.cut())
        .underscores(Some(keeps_underscores))
        .watched(Some(UploadWatch::new(pace, over)));
    (parts, body)
}

/// The upstream's answer, or what the client is told of its absence.
pub(super) async fn forward(
    member: &Member,
    recording: &mut Recording,
    head: Box<request::Parts>,
    body: RequestBody,
) -> Result<Result<Answer, Problem>, Abandoned> {
    let Some(pool) = &member.pool else {
        return Ok(Err(Problem::Unhandled));
    };
    member.wait_for_agent(&recording.down().edge).await;
    let pool = recording.down().pool(pool);
    let stand_ins = &member.stand_ins;
    let forwarded = match pool.upstream().protocol() {
        Protocol::Http1 => forward::over_http1(&pool, stand_ins, recording, head, body).await,
        Protocol::Http2 => forward::over_http2(&pool, stand_ins, recording, head, body).await,
    };
    let down = recording.down();
    match (forwarded, down.http1.broken()) {
        (Ok((mut head, source)), _) => {
            // The handshake of an upgrade is read in the fields of the hop.
            if head.status != StatusCode::SWITCHING_PROTOCOLS {
                fields::to_client(&mut head.headers);
            }
            Ok(Ok(Answer {
                head,
                source,
                closes: false,
            }))
        }
        (Err(Failure::ClientTooSlow), _) => Ok(Err(too_slow(down))),
        (Err(_), None) if recording.upload().is_some_and(UploadPace::is_too_slow) => {
            Ok(Err(too_slow(down)))
        }
        // Nobody is there to be answered.
        (Err(_), Some(Broken::Left)) => Err(Abandoned),
        (Err(_), None) if recording.is_cut() => Err(Abandoned),
        (Err(_), Some(Broken::Refused(violation))) => Ok(Err(Problem::Violation(violation))),
        (Err(_), None) if recording.is_over() => Ok(Err(Problem::Oversized)),
        (Err(failure), None) => Ok(Err(problem_of(&failure, down, member))),
    }
}

/// The client owes its request's body, and does not send it.
fn too_slow(down: &Downstream) -> Problem {
    down.edge.meters.requests_refused.up();
    Problem::Violation(Violation::TooSlow)
}

/// Gives an answer to the client.
async fn finish(
    recording: Recording,
    answer: Answer,
    wanted: Wanted,
    asked: &Asked,
) -> Response<ResponseBody> {
    match (answer.head.status, wanted) {
        (StatusCode::SWITCHING_PROTOCOLS, Wanted::WebSocket(key)) => {
            switch(recording, answer, &key, asked, |head| {
                upgrade::ask(&mut head.headers)
            })
            .await
        }
        (StatusCode::SWITCHING_PROTOCOLS, Wanted::Stream(key)) => {
            switch(recording, answer, &key, asked, upgrade::translate_back).await
        }
        (StatusCode::SWITCHING_PROTOCOLS, _) => refuse(recording, Problem::BadAnswer, asked),
        // The client would take it for a stream that is open.
        (status, Wanted::Stream(_)) if status.is_success() => {
            refuse(recording, Problem::BadAnswer, asked)
        }
        // A refused upgrade ends the connection, with what was sent ahead of it.
        (_, wanted) => {
            let closes = answer.closes || wanted != Wanted::Http;
            send(recording, Answer { closes, ..answer }, asked)
        }
    }
}

impl Answer {
    /// The edge's own.
    pub(super) fn of(problem: Problem, asked: &Asked, down: &Downstream) -> Self {
        Self {
            closes: matches!(
                problem.status(),
                StatusCode::BAD_REQUEST | StatusCode::REQUEST_TIMEOUT
            ),
            ..Self::made(down.answer(problem, asked.accept.as_ref()))
        }
    }

    /// One that a policy made.
    pub(super) fn made(answer: Response<Bytes>) -> Self {
        let (head, body) = answer.into_parts();
        Self {
            head,
            source: Source::Edge(body),
            closes: false,
        }
    }

    /// Has its body encoded on the way, if that may be and there is room for it.
    pub(super) fn encode(&mut self, coding: Coding, asked: &Asked, down: &Downstream) {
        let edge = &down.edge;
        if asked.is_head || self.source.is_ended() || !coding::may_encode(&self.head) {
            return;
        }
        // What begins with compression goes on with it, but under pressure nothing more begins.
        if edge.level() >= Level::Busy {
            return;
        }
        let room = Arc::clone(&edge.encoders).try_acquire_many_owned(coding.kib());
        let Ok(room) = room else { return };
        coding::tell(&mut self.head.headers, coding);
        let source = std::mem::replace(&mut self.source, Source::None);
        self.source = Source::Encoded(Box::new(Encoded::new(source, coding, room)));
    }
}

impl Asked {
    pub(super) fn of(parts: &request::Parts) -> Self {
        Self {
            version: parts.version,
            is_head: parts.method == Method::HEAD,
            stays: if parts.version == Version::HTTP_10 {
                has_token(&parts.headers, &CONNECTION, b"keep-alive")
            } else {
                !has_token(&parts.headers, &CONNECTION, b"close")
            },
            accept: parts.headers.get(ACCEPT).cloned(),
        }
    }

    /// Says what becomes of an HTTP/1 connection after the answer (RFC 9112 9.3), so that the event
    /// tells it as it was sent.
    fn tell(&self, headers: &mut HeaderMap, closes: bool) {
        let word = match self.version {
            Version::HTTP_2 => return,
            _ if closes || !self.stays => "close",
            Version::HTTP_10 => "keep-alive",
            _ => return,
        };
        headers.insert(CONNECTION, HeaderValue::from_static(word));
    }
}

/// The redirect that sends a user from the central callback to the endpoint of the sign-in.
fn forwarded_callback(down: &Downstream, parts: &request::Parts) -> Option<Response<Bytes>> {
    let live = down.edge.live.load();
    let logins = live.logins.as_ref()?;
    culvert_login::forwarded_callback(logins, (&down.info, &down.counters), parts)
}

/// The file an authority looks for at a name that is to get a certificate, whatever endpoint is there.
fn challenge(down: &Downstream, parts: &request::Parts) -> Option<Bytes> {
    if down.info.tls.get().is_some() {
        return None;
    }
    down.edge.live.load().answers.file(parts)
}

/// Answers an authority. Nobody's event.
fn prove(mut recording: Recording, file: Bytes, asked: &Asked) -> Response<ResponseBody> {
    let down = Arc::clone(recording.down());
    down.edge.meters.challenges_answered.up();
    let mut response = Response::new(());
    let headers = response.headers_mut();
    let media = HeaderValue::from_static("application/octet-stream");
    headers.insert(CONTENT_TYPE, media);
    headers.insert(CONTENT_LENGTH, HeaderValue::from(file.len()));
    headers.insert(DATE, reply::date(&down.info));
    recording.answer(response.status(), response.headers());
    let source = if asked.is_head {
        Source::None
    } else {
        Source::Edge(file)
    };
    response.map(|()| ResponseBody::new(source, recording))
}

/// Removes empty segments from the path of a request, unless the endpoint it is for keeps them.
fn merge_slashes(down: &Downstream, parts: &mut request::Parts) -> Result<(), Problem> {
    // Without this there is nothing to remove.
    if parts.extensions.get::<Received>().is_none() {
        return Ok(());
    }
    let live = down.edge.live.load();
    let authority = Authority::of(&parts.uri, parts.headers.get(HOST));
    let group = authority.ok().and_then(|authority| {
        let tables = match down.info.tls.get() {
            Some(_) => [&live.https, &live.https],
            None => [&live.http, &live.https],
        };
        tables
            .into_iter()
            .find_map(|table| table.find(&authority.host))
    });
    if group.is_some_and(|group| !group.merges_slashes()) {
        return Ok(());
    }
    let Some(local) = parts.uri.path_and_query() else {
        return Ok(());
    };
    let merged = target::merge_slashes(local);
    let merged = merged.and_then(|merged| {
        let uri = merged.map(|merged| target::with_path(&parts.uri, merged));
        uri.transpose()
    });
    match merged {
        Ok(None) => Ok(()),
        Ok(Some(uri)) => {
            parts.uri = uri;
            Ok(())
        }
        Err(what) => {
            down.edge.meters.requests_refused.up();
            Err(Problem::malformed(what))
        }
    }
}

/// What is at the host of a request.
enum Found {
    /// An endpoint, and the authority as a header value.
    Here(Arc<Member>, HeaderValue),
    /// An endpoint of the other scheme.
    Redirect(Response<Bytes>),
}

/// Sends a request in clear to the https endpoint of its host (RFC 9110 15.4.2 and 15.4.9), at the port that
/// the world connects to.
fn redirect(group: &Group, host: &str, parts: &request::Parts) -> Result<Response<Bytes>, Problem> {
    let port = match group.first().endpoint.port {
        0 | 443 => String::new(),
        port => format!(":{port}"),
    };
    let target = parts.uri.path_and_query();
    let target = target.map_or("/", |target| target.as_str());
    let target = if target == "*" { "/" } else { target };
    let location = HeaderValue::try_from(format!("https://{host}{port}{target}"));
    // Old clients know 301; what has a body must not become a GET.
    let status = match parts.method {
        Method::GET | Method::HEAD => StatusCode::MOVED_PERMANENTLY,
        _ => StatusCode::PERMANENT_REDIRECT,
    };
    let mut answer = reply::empty(status);
    let location = location.map_err(|_| Problem::Malformed)?;
    answer.headers_mut().insert(LOCATION, location);
    Ok(answer)
}

/// Whether a trusted proxy says that its client uses TLS. To redirect that client would go round in circles.
fn is_tls_elsewhere(down: &Downstream, parts: &request::Parts) -> bool {
    let proto = parts.headers.get(fields::X_FORWARDED_PROTO);
    down.info.is_trusted
        && proto.is_some_and(|proto| proto.as_bytes().eq_ignore_ascii_case(b"https"))
}

/// The endpoint a request is for.
fn find(
    down: &Downstream,
    recording: &mut Recording,
    parts: &request::Parts,
) -> Result<Found, Problem> {
    let mut hosts = parts.headers.get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(Problem::Authority);
    }
    let authority = Authority::of(&parts.uri, host).map_err(|_| Problem::Authority)?;
    let live = down.edge.live.load();
    let tls = down.info.tls.get();
    let (table, scheme) = if tls.is_some() {
        (&live.https, "https")
    } else {
        (&live.http, "http")
    };
    // An absolute target must not name another scheme than the connection has (RFC 9110 7.4).
    if parts.uri.scheme_str().is_some_and(|named| named != scheme) {
        return Err(Problem::malformed(
            "the scheme is not that of the connection",
        ));
    }
    let Some(group) = table.find(&authority.host) else {
        if down.rules.redirect_http
            && tls.is_none()
            && let Some(group) = live.https.find(&authority.host)
            && !is_tls_elsewhere(down, parts)
        {
            recording.resolved(group.account(), parts, &authority);
            if !group.admits(down.info.client.ip()) {
                recording.blocked();
                return Err(Problem::Restricted);
            }
            return redirect(group, &authority.host, parts).map(Found::Redirect);
        }
        down.edge.meters.unknown_hosts.up();
        return Err(Problem::UnknownHost);
    };
    if let Some(tls) = tls
        && down.info.sni() != authority.host
        && !shares_rules(down, tls, group, &live, &authority.host)
    {
        if let Some(own) = down.tls_group.get() {
            recording.resolved(own.account(), parts, &authority);
        }
        return Err(Problem::Misdirected);
    }
    recording.resolved(group.account(), parts, &authority);
    if !group.admits(down.info.client.ip()) {
        recording.blocked();
        return Err(Problem::Restricted);
    }
    let value = match host {
        Some(value) => value.clone(),
        None => HeaderValue::from_str(authority.text).map_err(|_| Problem::Authority)?,
    };
    Ok(Found::Here(Arc::clone(group.pick(&down.edge)), value))
}

/// Whether a connection made for one name may carry requests for another: same account, the certificate
/// it was made with covers both, and no policy of the other name has rules about connections.
fn shares_rules(down: &Downstream, tls: &TlsInfo, group: &Group, live: &Live, host: &str) -> bool {
    down.tls_group
        .get()
        .is_none_or(|own| own.account() == group.account())
        && down
            .edge
            .certificate(live, host)
            .is_some_and(|presented| Arc::ptr_eq(&presented, &tls.certificate))
        // What one name asks of a connection, one made for another may not have fulfilled.
        && !group.judges_connections()
}

/// What the edge refuses of any endpoint.
pub(super) fn check(parts: &request::Parts, wanted: &Wanted) -> Result<(), Problem> {
    // Streams that ask for a protocol are judged by what they ask.
    let is_stream = parts.extensions.get::<http2::Protocol>().is_some();
    let is_connect = parts.method == Method::CONNECT && !is_stream;
    // `PRI` begins the preface of HTTP/2 and is no request's (RFC 9113 3.4).
    if is_connect || parts.method == Method::TRACE || parts.method.as_str() == "PRI" {
        return Err(Problem::Method);
    }
    let path = parts.uri.path();
    let is_star = path == "*" && parts.method == Method::OPTIONS;
    if !is_star && !path.starts_with('/') {
        return Err(Problem::Malformed);
    }
    for expectation in parts.headers.get_all(EXPECT) {
        if !expectation.as_bytes().eq_ignore_ascii_case(b"100-continue") {
            return Err(Problem::Expectation);
        }
    }
    match wanted {
        Wanted::Broken => Err(Problem::Upgrade),
        Wanted::Http | Wanted::WebSocket(_) | Wanted::Stream(_) => Ok(()),
    }
}

/// What a client is told of a failure.
fn problem_of(failure: &Failure, down: &Downstream, member: &Member) -> Problem {
    down.edge.meters.upstream_failed.up();
    tracing::debug!(endpoint.id = %member.endpoint.id, %failure, "upstream request failed");
    match failure {
        Failure::ClientTooSlow => Problem::Violation(Violation::TooSlow),
        Failure::Dial(DialError::TooSlow) | Failure::TooSlow => Problem::UpstreamTooSlow,
        Failure::Dial(DialError::Agent(AgentRefused::Away)) => Problem::UnknownHost,
        Failure::Dial(DialError::Agent(AgentRefused::Busy)) => Problem::AgentBusy,
        Failure::Dial(_) | Failure::Silent(_) => Problem::Unreachable,
        Failure::Unsuited => Problem::Unsuited,
        Failure::Http1(_) | Failure::Http2(_) | Failure::Closed | Failure::Unacceptable(_) => {
            Problem::BadAnswer
        }
    }
}

/// The edge's own answer.
fn refuse(recording: Recording, problem: Problem, asked: &Asked) -> Response<ResponseBody> {
    let answer = Answer::of(problem, asked, recording.down());
    send(recording, answer, asked)
}

/// An answer on its way to the client.
fn send(recording: Recording, answer: Answer, asked: &Asked) -> Response<ResponseBody> {
    let down = Arc::clone(recording.down());
    let Answer {
        mut head,
        source,
        closes,
    } = answer;
    head.extensions.clear();
    if !head.headers.contains_key(DATE) {
        head.headers.insert(DATE, reply::date(&down.info));
    }
    let has_none = asked.is_head
        || matches!(
            head.status,
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        );
    if has_none && !asked.is_head {
        head.headers.remove(CONTENT_LENGTH);
    }
    let source = if has_none { Source::None } else { source };
    let mut recording = recording;
    if let Source::Encoded(encoded) = &source {
        recording.encodes(encoded.coding.name());
    }
    let mut body = ResponseBody::new(source, recording);
    if asked.version != Version::HTTP_2 {
        let length = body.size_hint().exact();
        let is_open_ended = !has_none && length.is_none();
        if let (Some(length), false) = (length, has_none) {
            // What an upstream left out because the end of its stream told it.
            if let Entry::Vacant(entry) = head.headers.entry(CONTENT_LENGTH) {
                entry.insert(HeaderValue::from(length));
            }
        }
        if asked.version == Version::HTTP_11 && is_open_ended {
            head.headers
                .insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            body = body.chunked();
        }
        // Before chunks, only its close could end such an answer.
        let ends = asked.version == Version::HTTP_10 && is_open_ended;
        let closes = closes || ends || down.edge.is_closing();
        asked.tell(&mut head.headers, closes);
    }
    body.recorded(|recording| recording.answer(head.status, &head.headers));
    Response::from_parts(head, body)
}

/// The upstream switched to WebSocket: passes its 101 on, as the client's protocol says it, and leaves the
/// rest to the connection's driver.
async fn switch(
    mut recording: Recording,
    answer: Answer,
    key: &HeaderValue,
    asked: &Asked,
    say: impl FnOnce(&mut response::Parts),
) -> Response<ResponseBody> {
    let Answer {
        head: mut parts,
        source,
        ..
    } = answer;
    let Some((upstream, early)) = upgraded(&parts, source, key).await else {
        return refuse(recording, Problem::BadAnswer, asked);
    };
    fields::to_client(&mut parts.headers);
    parts.extensions.clear();
    parts.headers.remove(CONTENT_LENGTH);
    say(&mut parts);
    recording.answer(parts.status, &parts.headers);
    let tunnel = Tunnel {
        upstream,
        early,
        recording,
    };
    Response::from_parts(parts, ResponseBody::of_upgrade(Box::new(tunnel)))
}

/// The upstream's end of an upgraded connection, if its 101 carries the proof.
async fn upgraded(
    parts: &response::Parts,
    source: Source,
    key: &HeaderValue,
) -> Option<(UpWire, Bytes)> {
    match source {
        Source::Http1(lease) if upgrade::is_accepted(&parts.headers, key) => {
            Some(lease.into_upgraded())
        }
        Source::Stream(stream) if upgrade::is_accepted(&parts.headers, key) => {
            let stream = TokioIo::new(stream.await.ok()?);
            Some((UpWire::carried(stream), Bytes::new()))
        }
        _ => None,
    }
}
