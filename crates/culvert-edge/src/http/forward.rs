//! Sends one request to its upstream and receives the head of the response.
//!
//! A request is sent again only on a new connection, only if a reused one had closed without a byte of a
//! response, and only if the request had not begun or is idempotent.
//!
//! Some schemes of authentication, such as NTLM, authenticate the connection that a request uses, and with it all later
//! requests on it ([`authenticates_connection`]). Such a connection serves no other client. It belongs to the client's
//! connection, and closes with it. If that may have several clients, or if a policy set the credentials, it closes after
//! the response.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use culvert_events::Reason;
use culvert_http::fields::{authenticates_connection, has_connection_authentication};
use culvert_http::http1::head::is_status;
use culvert_http::http1::{BodyLength, FinalHead, Violation};
use culvert_io::upstream_tls::TlsFailure;
use culvert_io::{Awaited, UploadProgress};
use culvert_policy::own_cookies;
use culvert_policy::policy::edits::Edits;
use culvert_policy::problem::Problem;
use culvert_upstream::{
    AgentRefused, DialError, Http1ClientError, Protocol, Received, SendResult, UpstreamError,
    UpstreamHead, is_silent, refusal,
};
use http::header::{
    AUTHORIZATION, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, UPGRADE, WWW_AUTHENTICATE,
};
use http::uri::{PathAndQuery, Scheme, Uri};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, request, response};
use http_body::Body;
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::connection::downstream::Downstream;
use crate::connection::http1_state::Broken;
use crate::http::balanced;
use crate::http::exchange::{HttpExchange, UpstreamLimits};
use crate::http::fields;
use crate::http::forward_request::{ForwardRequest, OutgoingRequest, Reuse};
use crate::http::plain_head::{OutgoingHead, set_trace};
use crate::http::request_body::RequestBody;
use crate::http::response::{Abandoned, PendingResponse};
use crate::http::response_body::Source;
use crate::http::upgrade;
use crate::http::upgrade::UpgradeRequest;
use crate::pools::{Attempt, Http2Stream, Lease, PendingStream, Pool};
use crate::snapshot::group::{Member, StandIn};

/// The first pause before a request goes to a busy agent again, which doubles each time, and the time limit of
/// these attempts.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);
const REFUSED_RETRY_WITHIN: Duration = Duration::from_secs(5);
/// The pause between lookups of an agent that has just disconnected or changed its node, and the time limit of
/// these lookups.
const LOOK_FOR_AGENT_EVERY: Duration = Duration::from_millis(20);
const LOOK_FOR_AGENT_WITHIN: Duration = Duration::from_secs(2);

/// Sends a request to the upstream of the endpoint it has reached. A problem if there is no response.
pub(super) async fn forward(
    exchange: &mut HttpExchange,
    request: ForwardRequest,
    wanted: &UpgradeRequest,
    edits: Option<Edits>,
) -> Result<Result<PendingResponse, Problem>, Abandoned> {
    if let Err(problem) = request.check(wanted) {
        return Ok(Err(problem));
    }
    let member = Arc::clone(&request.member);
    let OutgoingRequest { head, body, reuse } = request.outgoing(exchange, wanted, edits);
    let sent = send_to(exchange, &member, OutgoingHead::Parts(head), body, reuse).await?;
    Ok(sent.and_then(|(head, source)| general(head, source)))
}

/// A response of an upstream, on the general path.
pub(super) fn general(head: FinalHead, source: Source) -> Result<PendingResponse, Problem> {
    let mut head = head.into_parts().map_err(|_| Problem::BadAnswer)?;
    // The handshake of an upgrade is in the fields of the hop.
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        own_cookies::drop_set_cookies(&mut head.headers);
    } else {
        let asked = match head.status {
            // The client has to know what to ask for (RFC 9110 15.5.22).
            StatusCode::UPGRADE_REQUIRED => head.headers.get_all(UPGRADE).iter().cloned().collect(),
            _ => Vec::new(),
        };
        fields::to_client(&mut head.headers);
        for protocols in asked {
            head.headers.append(UPGRADE, protocols);
        }
    }
    Ok(PendingResponse {
        head,
        source,
        closes: false,
        reason: None,
    })
}

/// Sends a request to the upstream of an endpoint. A problem if there is no response.
pub(super) async fn send_to(
    exchange: &mut HttpExchange,
    member: &Member,
    head: OutgoingHead<'_>,
    body: RequestBody,
    reuse: Reuse,
) -> Result<Result<UpstreamResponse, Problem>, Abandoned> {
    let Some(pool) = &member.pool else {
        return Ok(Err(Problem::Unhandled));
    };
    if let Err(problem) = exchange.enter(member).await {
        return Ok(Err(problem));
    }
    member.wait_for_agent(exchange.down().edge.agents()).await;
    let limits = exchange.upstream_limits();
    let way = Way {
        member,
        reuse,
        limits: &limits,
        stand_ins: &member.stand_ins,
        attempt: None,
    };
    let mut body = body;
    let forwarded = match (&member.targets, pool.upstream().protocol(), head) {
        (Some(targets), _, mut head) => {
            // Boxed, so that a request to the only upstream of its endpoint is small.
            Box::pin(balanced::send(targets, way, exchange, &mut head, &mut body)).await
        }
        (None, Protocol::Http2, OutgoingHead::Parts(head)) => {
            let pool = pool_for(exchange, pool, member);
            // Boxed, so that a request on HTTP/1 is small.
            Box::pin(over_http2(&pool, way, exchange, head, &mut body)).await
        }
        (None, _, mut head) => {
            let pool = pool_for(exchange, pool, member);
            over_http1(&pool, way, exchange, &mut head, &mut body).await
        }
    };
    let down = exchange.down();
    match (forwarded, down.conn.http1.broken()) {
        (Ok(response), _) => Ok(Ok(response)),
        (Err(UpstreamError::ClientTooSlow), _) => Ok(Err(client_too_slow(down))),
        (Err(_), None) if exchange.upload().is_some_and(UploadProgress::is_too_slow) => {
            Ok(Err(client_too_slow(down)))
        }
        // The client has gone.
        (Err(_), Some(Broken::Left)) => Err(Abandoned),
        (Err(_), None) if exchange.is_cut() => Err(Abandoned),
        (Err(_), Some(Broken::Refused(violation))) => Ok(Err(Problem::Violation(violation))),
        (Err(_), None) if exchange.is_over() => Ok(Err(Problem::Oversized)),
        (Err(UpstreamError::Full), None) => Ok(Err(Problem::UpstreamFull)),
        (Err(failure), None) => {
            exchange.recording.note_reason(reason_of(&failure));
            Ok(Err(problem_of(&failure, down, member)))
        }
    }
}

/// The endpoint that a request has reached, its time limits, and whom its connection may serve afterwards.
#[derive(Clone, Copy)]
pub(super) struct Way<'x> {
    pub(super) member: &'x Member,
    pub(super) reuse: Reuse,
    pub(super) limits: &'x UpstreamLimits,
    /// Where it goes if the upstream is unreachable.
    pub(super) stand_ins: &'x [StandIn],
    /// The attempt at the upstream, if it is one of several.
    pub(super) attempt: Option<&'x Attempt<'x>>,
}

impl Way<'_> {
    /// Restricts whom the connection of a request serves after it.
    fn restrict(self, exchange: &HttpExchange, lease: &mut Lease) {
        match self.reuse {
            Reuse::Anyone => {}
            Reuse::Client if exchange.has_one_client() => {
                exchange.down().keep_for_client(lease, &self.member.id);
            }
            Reuse::Client | Reuse::Nobody => lease.close_after(),
        }
    }
}

/// The pool for a request to an endpoint.
pub(super) fn pool_for(exchange: &HttpExchange, shared: &Arc<Pool>, member: &Member) -> Arc<Pool> {
    // A policy acts for itself, and not as the client.
    let endpoint = (!exchange.is_call()).then_some(&*member.id);
    exchange.down().pool(shared, endpoint)
}

/// Whether the response asks for credentials that authenticate the connection.
fn is_challenge(head: &FinalHead) -> bool {
    let status = head.status();
    if ![
        StatusCode::UNAUTHORIZED,
        StatusCode::PROXY_AUTHENTICATION_REQUIRED,
    ]
    .contains(&status)
    {
        return false;
    }
    match head {
        FinalHead::Parts(parts) => {
            let names = [WWW_AUTHENTICATE, PROXY_AUTHENTICATE];
            has_connection_authentication(&parts.headers, names)
        }
        FinalHead::Raw(raw) => raw.fields().iter().any(|field| {
            (field.is("www-authenticate") || field.is("proxy-authenticate"))
                && authenticates_connection(field.value)
        }),
    }
}

/// The client does not send the body of its request in time.
fn client_too_slow(down: &Downstream) -> Problem {
    down.edge.state.meters.requests_refused.up();
    Problem::Violation(Violation::TooSlow)
}

/// The problem that a client gets for a failure.
fn problem_of(failure: &UpstreamError, down: &Downstream, member: &Member) -> Problem {
    down.edge.state.meters.upstream_failed.up();
    tracing::debug!(endpoint.id = %member.endpoint.id, %failure, "upstream request failed");
    match failure {
        UpstreamError::Dial(DialError::Agent(AgentRefused::Silent)) => Problem::AgentSilent,
        failure if is_silent(failure) => Problem::AgentSilent,
        UpstreamError::ClientTooSlow => Problem::Violation(Violation::TooSlow),
        UpstreamError::Dial(DialError::TooSlow) | UpstreamError::TooSlow => {
            Problem::UpstreamTooSlow
        }
        UpstreamError::Dial(DialError::Agent(AgentRefused::Away)) => Problem::UnknownHost,
        UpstreamError::Dial(DialError::Agent(AgentRefused::Busy)) => Problem::AgentBusy,
        UpstreamError::Dial(DialError::Tls(error)) => match TlsFailure::of(error) {
            TlsFailure::Dates => Problem::UpstreamDates,
            TlsFailure::Issuer => Problem::UpstreamIssuer,
            TlsFailure::Name => Problem::UpstreamName,
            TlsFailure::Pin => Problem::UpstreamPin,
            TlsFailure::Other => Problem::UpstreamTls,
        },
        UpstreamError::Dial(DialError::TlsWithheld(_)) => Problem::UpstreamTls,
        UpstreamError::Dial(_) | UpstreamError::Silent(_) => Problem::Unreachable,
        UpstreamError::Unsuited => Problem::Unsuited,
        UpstreamError::Full => Problem::UpstreamFull,
        UpstreamError::Http1(_)
        | UpstreamError::Http2(_)
        | UpstreamError::Closed
        | UpstreamError::Unacceptable(_) => Problem::BadAnswer,
    }
}

/// The reason of a failure in the event.
pub(super) fn reason_of(failure: &UpstreamError) -> Reason {
    match failure {
        failure if is_silent(failure) => Reason::AgentSilent,
        UpstreamError::Dial(error) => reason_of_dial(error),
        UpstreamError::ClientTooSlow => Reason::TooSlow,
        UpstreamError::TooSlow => Reason::ResponseTimeout,
        UpstreamError::Unsuited => Reason::Unsuited,
        UpstreamError::Full => Reason::UpstreamFull,
        // An agent that cannot connect to its service closes the stream.
        UpstreamError::Silent(_) => Reason::ConnectFailed,
        UpstreamError::Closed
        | UpstreamError::Http1(Http1ClientError::Io(_) | Http1ClientError::Ended) => {
            Reason::Aborted
        }
        UpstreamError::Http2(error) if error.is_closed() || error.is_incomplete_message() => {
            Reason::Aborted
        }
        UpstreamError::Http1(_) | UpstreamError::Http2(_) | UpstreamError::Unacceptable(_) => {
            Reason::BadResponse
        }
    }
}

/// The reason for which connecting to an upstream failed, in the event.
pub(crate) fn reason_of_dial(error: &DialError) -> Reason {
    match error {
        DialError::NoAddress => Reason::NoAddress,
        DialError::Private
        | DialError::OwnListener
        | DialError::SocketNotAllowed
        | DialError::FolderNotAllowed => Reason::AddressForbidden,
        DialError::TooManyLookups => Reason::LookupLimit,
        DialError::TooSlow => Reason::ConnectTimeout,
        DialError::Connect(_) => Reason::ConnectFailed,
        DialError::Proxy(_) => Reason::ProxyFailed,
        DialError::Tls(error) => match TlsFailure::of(error) {
            TlsFailure::Dates => Reason::UpstreamDates,
            TlsFailure::Issuer => Reason::UpstreamIssuer,
            TlsFailure::Name => Reason::UpstreamName,
            TlsFailure::Pin => Reason::UpstreamPin,
            TlsFailure::Other => Reason::UpstreamTls,
        },
        DialError::TlsWithheld(_) => Reason::UpstreamTls,
        DialError::Agent(AgentRefused::Away) => Reason::AgentAway,
        DialError::Agent(AgentRefused::Busy) => Reason::AgentBusy,
        DialError::Agent(AgentRefused::Silent) => Reason::AgentSilent,
    }
}

/// The head of a response, and the source of its body.
pub(super) type UpstreamResponse = (FinalHead, Source);

/// Forwards over HTTP/1.1. If the upstream of `pool` is unreachable or closes without a response, the request
/// goes to a stand-in. If connecting fails, nothing was taken of the body.
pub(super) async fn over_http1(
    pool: &Arc<Pool>,
    way: Way<'_>,
    exchange: &mut HttpExchange,
    head: &mut OutgoingHead<'_>,
    body: &mut RequestBody,
) -> Result<UpstreamResponse, UpstreamError> {
    let down = Arc::clone(exchange.down());
    let meters = &down.edge.state.meters;
    if let OutgoingHead::Parts(head) = head
        && head.uri.authority().is_some()
    {
        let path = head.uri.path_and_query().cloned();
        head.uri = path
            .unwrap_or_else(|| PathAndQuery::from_static("/"))
            .into();
    }
    let can_be_repeated = body.is_end_stream() && is_idempotent(head.method());
    let mut has_moved = false;
    if let Some(mut lease) = poll_fn(|cx| Poll::Ready(pool.reuse(cx))).await {
        begin_attempt(exchange, pool, true, head);
        meters.upstream_reused.up();
        match send(&mut lease, exchange, (&down, way), head, taken(body)).await? {
            SendResult::Responded(head) => return Ok(take(head, lease)),
            SendResult::Failed(Http1ClientError::Io(error), Received::Nothing)
                if can_be_repeated && is_lost(&error) =>
            {
                meters.upstream_retries.up();
                has_moved = true;
            }
            SendResult::Failed(error, _) => return Err(error.into()),
            SendResult::Stale if can_be_repeated => meters.upstream_retries.up(),
            SendResult::Stale => return Err(UpstreamError::Closed),
        }
    }
    // Boxed, so that a request that uses an open connection is small.
    let request = NewRequest {
        head,
        body,
        has_moved,
    };
    Box::pin(over_new_connection(pool, way, exchange, &down, request)).await
}

/// The body that is sent. Afterwards only a request without one is sent again.
fn taken(body: &mut RequestBody) -> RequestBody {
    std::mem::replace(body, RequestBody::empty())
}

/// A request that needs a new connection.
struct NewRequest<'x, 'h> {
    head: &'x mut OutgoingHead<'h>,
    body: &'x mut RequestBody,
    /// Whether it was sent to an agent that has left.
    has_moved: bool,
}

/// As [`over_http1`], on new connections.
async fn over_new_connection(
    pool: &Arc<Pool>,
    way: Way<'_>,
    exchange: &mut HttpExchange,
    down: &Downstream,
    request: NewRequest<'_, '_>,
) -> Result<UpstreamResponse, UpstreamError> {
    let meters = &down.edge.state.meters;
    let NewRequest { head, body, .. } = request;
    // A refused agent has read nothing of the request.
    let can_be_moved = body.is_end_stream();
    let can_be_repeated = can_be_moved && is_idempotent(head.method());
    let mut search = Search::after(request.has_moved);
    let is_agents = pool.upstream().agents_endpoint().is_some();
    let mut stand_ins = way.stand_ins.iter().filter(|one| one.has_room());
    let mut pool = Arc::clone(pool);
    // The first pool whose agents were busy. The request waits for it if no other is left.
    let mut busy: Option<Arc<Pool>> = None;
    let (mut in_turn, mut pause) = (false, REFUSED_PAUSE);
    let retry_until = Instant::now() + REFUSED_RETRY_WITHIN;
    // Stand-ins do not count for the upstream.
    let mut attempt = way.attempt;
    loop {
        let next = stand_ins.next();
        let clock = exchange.recording.connect_clock();
        let connecting = attempt.take();
        Attempt::note(connecting, true);
        let connector = down.connector(&way.member.endpoint);
        let connected = match in_turn {
            true => pool.connect_in_turn(&connector, way.limits.connect).await,
            false => pool.connect(&connector, way.limits.connect).await,
        };
        Attempt::note(connecting, false);
        let mut lease = match (connected, next) {
            (Ok(lease), _) => lease,
            (Err(UpstreamError::Dial(error)), next) => {
                exchange.recording.connected(clock);
                note_busy(&mut busy, &error, &pool);
                match (next, busy.take_if(|_| next.is_none() && !in_turn)) {
                    (Some(next), _) => {
                        unreached(exchange, &pool, head.method(), &error);
                        pool = stand_in(exchange, way, next);
                    }
                    (None, Some(first)) => (pool, in_turn) = (first, true),
                    (None, None) if search.goes_on(&error, &pool, down).await => {}
                    (None, None) => {
                        unreached(exchange, &pool, head.method(), &error);
                        return Err(UpstreamError::Dial(error));
                    }
                }
                continue;
            }
            (Err(failure), _) => return Err(failure),
        };
        exchange.recording.connected(clock);
        begin_attempt(exchange, &pool, lease.was_used(), head);
        match (
            send(&mut lease, exchange, (down, way), head, taken(body)).await?,
            next,
        ) {
            (SendResult::Responded(head), _) => return Ok(take(head, lease)),
            (SendResult::Failed(Http1ClientError::Io(error), Received::Nothing), next)
                if refusal(&error).is_some() =>
            {
                let refused = DialError::Agent(refusal(&error).unwrap_or(AgentRefused::Busy));
                if refused.is_away() {
                    search.begin();
                }
                let is_over = match refused.is_away() {
                    true => search.is_over(),
                    false => Instant::now() >= retry_until,
                };
                if !can_be_moved || (next.is_none() && is_over) {
                    return Err(UpstreamError::Dial(refused));
                }
                meters.upstream_retries.up();
                match next {
                    Some(next) => {
                        note_busy(&mut busy, &refused, &pool);
                        pool = stand_in(exchange, way, next);
                    }
                    None if refused.is_away() => tokio::time::sleep(LOOK_FOR_AGENT_EVERY).await,
                    None => {
                        tokio::time::sleep(pause).await;
                        (pause, in_turn) = (pause * 2, true);
                    }
                }
            }
            // The agent disconnected, and another can serve the request. An upstream may have begun to speak another protocol.
            (SendResult::Failed(_, Received::Nothing), Some(next))
                if can_be_repeated && (is_agents || !head.is_upgrade()) =>
            {
                meters.upstream_retries.up();
                pool = stand_in(exchange, way, next);
            }
            // The connection to the agent or its node was lost, and is about to be replaced.
            (SendResult::Failed(Http1ClientError::Io(error), Received::Nothing), None)
                if is_agents && can_be_repeated && is_lost(&error) && !search.has_failed() =>
            {
                meters.upstream_retries.up();
                search.begin();
                tokio::time::sleep(LOOK_FOR_AGENT_EVERY).await;
            }
            (SendResult::Failed(error, Received::Nothing), _) if is_agents => {
                return Err(UpstreamError::Silent(error));
            }
            (SendResult::Failed(error, _), _) => return Err(error.into()),
            // A reused connection that has closed meanwhile.
            (SendResult::Stale, _) if can_be_repeated => {
                meters.upstream_retries.up();
            }
            (SendResult::Stale, _) => return Err(UpstreamError::Closed),
        }
    }
}

/// Records an attempt at the upstream of a pool, with a request that gets the fields of its trace.
fn begin_attempt(
    exchange: &mut HttpExchange,
    pool: &Pool,
    is_reused: bool,
    head: &mut OutgoingHead<'_>,
) {
    exchange.recording.upstream(pool.name(), is_reused);
    if !exchange.recording.has_trace() {
        return;
    }
    let down = Arc::clone(exchange.down());
    let recording = &mut exchange.recording;
    let (upstream, method) = ((pool.upstream(), pool.name()), head.method());
    let agents = down.edge.agents();
    if let Some(outgoing) = recording.trace_attempt(upstream, method, is_reused, agents) {
        head.set_trace(outgoing);
    }
}

/// Records an attempt that could not connect to the upstream of a pool, in the trace.
fn unreached(exchange: &mut HttpExchange, pool: &Pool, method: &Method, error: &DialError) {
    let upstream = (pool.upstream(), pool.name());
    let reason = reason_of_dial(error);
    exchange.recording.trace_unreached(upstream, method, reason);
}

/// The end of an attempt over HTTP/2, for its span.
fn http2_outcome<B, R>(
    sent: &Result<Result<Response<B>, (hyper::Error, R)>, UpstreamError>,
) -> Result<StatusCode, Reason> {
    match sent {
        Ok(Ok(response)) => Ok(response.status()),
        Ok(Err((error, _))) if error.is_closed() || error.is_incomplete_message() => {
            Err(Reason::Aborted)
        }
        Ok(Err(_)) => Err(Reason::BadResponse),
        Err(failure) => Err(reason_of(failure)),
    }
}

/// The end of an attempt over HTTP/1, for its span.
fn outcome(sent: &Result<SendResult, UpstreamError>) -> Result<StatusCode, Reason> {
    match sent {
        Ok(SendResult::Responded(head)) => Ok(head.status()),
        Ok(SendResult::Failed(Http1ClientError::Io(error), _)) => Err(match refusal(error) {
            Some(refused) => reason_of_dial(&DialError::Agent(refused)),
            None => Reason::Aborted,
        }),
        Ok(SendResult::Failed(Http1ClientError::Ended, _) | SendResult::Stale) => {
            Err(Reason::Aborted)
        }
        Ok(SendResult::Failed(..)) => Err(Reason::BadResponse),
        Err(failure) => Err(reason_of(failure)),
    }
}

/// Keeps the first pool whose agents were busy.
fn note_busy(busy: &mut Option<Arc<Pool>>, error: &DialError, pool: &Arc<Pool>) {
    if error.is_busy() {
        busy.get_or_insert_with(|| Arc::clone(pool));
    }
}

/// The pool of a stand-in that serves the request.
fn stand_in(exchange: &mut HttpExchange, way: Way<'_>, stand_in: &StandIn) -> Arc<Pool> {
    exchange.count.stands_in(stand_in);
    exchange.is_at_stand_in = true;
    let down = Arc::clone(exchange.down());
    let (pool, places) = stand_in.enter(&down.edge.state.meters);
    exchange.enters(places);
    pool_for(exchange, pool, way.member)
}

/// Whether a stream ended with the connection that carried it.
fn is_lost(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::ConnectionAborted
}

/// Repeated lookups of an agent that is about to reconnect, here or at another node.
struct Search {
    until: Instant,
    /// Whether a request went to a node that the agent had just left.
    is_begun: bool,
}

impl Search {
    fn new() -> Self {
        Self {
            until: Instant::now() + LOOK_FOR_AGENT_WITHIN,
            is_begun: false,
        }
    }

    /// One whose time limit has started if a request went to a node that the agent `has_left`.
    fn after(has_left: bool) -> Self {
        Self {
            is_begun: has_left,
            ..Self::new()
        }
    }

    /// Starts the time limit, with the first request that went to a node that the agent had just left.
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.is_begun, true) {
            self.until = Instant::now() + LOOK_FOR_AGENT_WITHIN;
        }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Whether the time limit is reached.
    fn has_failed(&self) -> bool {
        self.is_begun && self.is_over()
    }

    /// Waits before another lookup, if the agent is away and may return.
    async fn goes_on(&self, error: &DialError, pool: &Pool, down: &Downstream) -> bool {
        let may_return = || {
            let id = pool.upstream().agents_endpoint();
            let agents = down.edge.agents();
            id.zip(agents)
                .is_some_and(|(id, agents)| agents.may_return(id))
        };
        let goes_on = error.is_away() && !self.is_over() && (self.is_begun || may_return());
        if goes_on {
            tokio::time::sleep(LOOK_FOR_AGENT_EVERY).await;
        }
        goes_on
    }
}

/// Forwards over HTTP/2. If the upstream of `pool` is unreachable, the request goes to a stand-in. If connecting fails,
/// nothing was taken of the body.
///
/// The connections are shared. A request that could authenticate its connection, though RFC 9113 knows no such thing, has
/// a separate one.
pub(super) async fn over_http2(
    pool: &Arc<Pool>,
    way: Way<'_>,
    exchange: &mut HttpExchange,
    head: Box<request::Parts>,
    body: &mut RequestBody,
) -> Result<UpstreamResponse, UpstreamError> {
    let down = Arc::clone(exchange.down());
    let mut request = Request::from_parts(*head, RequestBody::empty());
    *request.version_mut() = Version::HTTP_2;
    let host = request.headers_mut().remove(HOST);
    let host = host.ok_or(UpstreamError::Unacceptable("no target"))?;
    let key = upgrade::into_stream(&mut request);
    let connect = way.limits.connect;
    let mut stand_ins = way.stand_ins.iter().filter(|one| one.has_room());
    let mut pool = Arc::clone(pool);
    let (mut attempts, search) = (0, Search::new());
    // A handshake of WebSocket ends in a tunnel or with its stream, so only its credentials matter.
    let credentials = [AUTHORIZATION, PROXY_AUTHORIZATION];
    let is_alone = has_connection_authentication(request.headers(), credentials)
        || (way.reuse != Reuse::Anyone && key.is_none());
    loop {
        let clock = exchange.recording.connect_clock();
        let connecting = way.attempt.filter(|_| attempts == 0);
        Attempt::note(connecting, true);
        let opened = match is_alone {
            true => {
                pool.http2_alone(&down.connector(&way.member.endpoint), connect)
                    .await
            }
            false => {
                pool.http2(&down.connector(&way.member.endpoint), connect)
                    .await
            }
        };
        Attempt::note(connecting, false);
        let mut link = match (opened, attempts) {
            (Ok(link), _) => link,
            (Err(UpstreamError::Dial(error)), 0) => match stand_ins.next() {
                Some(next) => {
                    exchange.recording.connected(clock);
                    unreached(exchange, &pool, request.method(), &error);
                    pool = stand_in(exchange, way, next);
                    continue;
                }
                None if search.goes_on(&error, &pool, &down).await => continue,
                None => {
                    exchange.recording.connected(clock);
                    unreached(exchange, &pool, request.method(), &error);
                    return Err(UpstreamError::Dial(error));
                }
            },
            (Err(failure), _) => return Err(failure),
        };
        attempts += 1;
        if attempts == 1 {
            *request.body_mut() = taken(body);
        }
        if key.is_some() && !link.takes_streams() {
            return Err(UpstreamError::Unsuited);
        }
        let (sender, was_used) = (&mut link.sender, link.was_used);
        let target = absolute(&pool, &host, request.uri());
        *request.uri_mut() = target.ok_or(UpstreamError::Unacceptable("no target"))?;
        if !was_used {
            exchange.recording.connected(clock);
        }
        let recording = &mut exchange.recording;
        recording.upstream(pool.name(), was_used);
        let (upstream, method) = ((pool.upstream(), pool.name()), request.method());
        let agents = down.edge.agents();
        if let Some(outgoing) = recording.trace_attempt(upstream, method, was_used, agents) {
            set_trace(request.headers_mut(), outgoing);
        }
        let sent = async {
            // Waits while the upstream accepts no more streams.
            match sender.ready().await {
                Ok(()) => sender.try_send_request(request).await,
                Err(error) => return Err((error, Some(request))),
            }
            .map_err(|mut error| {
                let back = error.take_message();
                (error.into_error(), back)
            })
        };
        let sent = in_time(exchange, way.limits, sent).await;
        if exchange.recording.is_traced() {
            exchange.recording.end_attempt(http2_outcome(&sent));
        }
        match sent? {
            Ok(response) => return http2_response(response, key.as_ref(), link.stream),
            Err((_, Some(back))) if was_used && attempts == 1 && key.is_none() => {
                down.edge.state.meters.upstream_retries.up();
                request = back;
            }
            Err((error, _)) => {
                // Those of the next requests use another connection.
                if asks_for_calm(&error) {
                    link.stream.retire();
                }
                return Err(error.into());
            }
        }
    }
}

/// The response on a stream of HTTP/2. With the key of a handshake of WebSocket, a successful one opens a tunnel.
fn http2_response(
    mut response: Response<Incoming>,
    key: Option<&HeaderValue>,
    mut stream: Http2Stream,
) -> Result<UpstreamResponse, UpstreamError> {
    let is_open = key.is_some() && response.status().is_success();
    let becoming = is_open.then(|| hyper::upgrade::on(&mut response));
    let (mut parts, body) = response.into_parts();
    if !is_status(parts.status) {
        return Err(UpstreamError::Unacceptable("the status is not one of HTTP"));
    }
    BodyLength::content_length(&parts.headers).map_err(UpstreamError::Unacceptable)?;
    if let (Some(becoming), Some(key)) = (becoming, key) {
        upgrade::accept(&mut parts, key);
        let becoming = PendingStream::new(becoming, stream);
        return Ok((FinalHead::Parts(parts), Source::Stream(becoming)));
    }
    if body.is_end_stream() {
        stream.complete();
    }
    Ok((FinalHead::Parts(parts), Source::Http2 { body, stream }))
}

/// Whether an upstream refuses streams because of what others on the connection do, such as not reading.
fn asks_for_calm(error: &hyper::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            return error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM);
        }
        cause = error.source();
    }
    false
}

/// The target in the form of HTTP/2: with scheme and authority.
fn absolute(pool: &Pool, host: &HeaderValue, target: &Uri) -> Option<Uri> {
    let scheme = if pool.upstream().is_tls() {
        Scheme::HTTPS
    } else {
        Scheme::HTTP
    };
    let path = target.path_and_query().cloned();
    Uri::builder()
        .scheme(scheme)
        .authority(host.as_bytes())
        .path_and_query(path.unwrap_or_else(|| PathAndQuery::from_static("/")))
        .build()
        .ok()
}

async fn send(
    lease: &mut Lease,
    exchange: &mut HttpExchange,
    (down, way): (&Downstream, Way<'_>),
    head: &OutgoingHead<'_>,
    body: RequestBody,
) -> Result<SendResult, UpstreamError> {
    way.restrict(exchange, lease);
    let takes_more = !exchange.is_call();
    let has_informed = AtomicBool::new(false);
    let inform = |mut head: response::Parts| {
        // The client gets 100 (Continue) when the edge begins to read its body.
        if takes_more && head.status != StatusCode::CONTINUE {
            has_informed.store(true, Ordering::Relaxed);
            fields::to_client(&mut head.headers);
            down.conn.inform(head);
        }
    };
    let sent = in_time(exchange, way.limits, lease.send(head, body, inform)).await;
    exchange.has_informed |= has_informed.into_inner();
    if exchange.recording.is_traced() {
        exchange.recording.end_attempt(outcome(&sent));
    }
    let sent = sent?;
    if way.reuse == Reuse::Anyone
        && let SendResult::Responded(head) = &sent
        && is_challenge(head)
    {
        let reuse = Reuse::Client;
        Way { reuse, ..way }.restrict(exchange, lease);
    }
    Ok(sent)
}

/// Waits for the head of a response, within the timeout of the side that has to act: the client while its
/// request is incomplete, else the upstream. Bytes from the client count as progress.
async fn in_time<F: Future>(
    exchange: &mut HttpExchange,
    limits: &UpstreamLimits,
    future: F,
) -> Result<F::Output, UpstreamError> {
    let UpstreamLimits {
        first_byte,
        request,
        idle,
        ..
    } = *limits;
    let mut alarm = std::mem::take(&mut exchange.alarm);
    let (down, upload) = (exchange.down(), exchange.upload());
    let mut future = std::pin::pin!(future);
    let (mut seen, _) = down.conn.counters.bytes();
    let mut since = Instant::now();
    let output = poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        loop {
            let awaited = upload.map_or(Awaited::Upstream, UploadProgress::awaited);
            let deadline = match awaited {
                Awaited::Upstream => since + first_byte,
                Awaited::Client(waits) => waits + request,
                Awaited::Stream(waits) => since.max(waits) + idle,
            };
            // Another task may read the body, and does not wake this one when it starts to wait.
            let look = match upload {
                Some(upload) if !upload.is_over() => deadline.min(Instant::now() + request),
                _ => deadline,
            };
            if !alarm.is_due(cx, look) {
                return Poll::Pending;
            }
            if look < deadline {
                continue;
            }
            if let Awaited::Client(_) = awaited {
                return Poll::Ready(Err(UpstreamError::ClientTooSlow));
            }
            let (bytes, _) = down.conn.counters.bytes();
            if bytes == seen {
                return Poll::Ready(Err(UpstreamError::TooSlow));
            }
            (seen, since) = (bytes, Instant::now());
        }
    })
    .await;
    if let Some(upload) = upload {
        upload.begin_response();
    }
    exchange.alarm = alarm;
    output
}

/// An HTTP/1 response. Its connection returns to the pool immediately if there is no body.
fn take(head: FinalHead, lease: Lease) -> UpstreamResponse {
    if !lease.is_spent() || head.status() == StatusCode::SWITCHING_PROTOCOLS {
        return (head, Source::Http1(lease));
    }
    lease.give_back();
    (head, Source::None)
}

/// Whether repeating a request is harmless (RFC 9110 9.2.2).
pub(super) fn is_idempotent(method: &Method) -> bool {
    [
        Method::GET,
        Method::HEAD,
        Method::OPTIONS,
        Method::PUT,
        Method::DELETE,
    ]
    .contains(method)
}
