//! One HTTP request from top to bottom: admission, route, request policies, forward, response policies,
//! response.
//!
//! Whatever ends it, dropping the [`HttpExchange`] completes its record.

use std::sync::Arc;

use bytes::Bytes;
use culvert_http::authority::Authority;
use culvert_http::http1::Violation;
use culvert_http::http2::Refused;
use culvert_login::CentralCallback;
use culvert_overload::Level;
use culvert_policy::own_cookies;
use culvert_policy::policy::exchange::{Exchange, Memory};
use culvert_policy::policy::phase::Phase;
use culvert_policy::problem::Problem;
use culvert_policy::reply;
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, SET_COOKIE};
use http::{Method, Response, Version, request};

use crate::connection::downstream::Downstream;
use crate::http::exchange::{HttpExchange, can_hold_head};
use crate::http::fields;
use crate::http::fields::FIELD_OVERHEAD;
use crate::http::forward::forward;
use crate::http::forward_request::{ForwardRequest, PolicyFields};
use crate::http::maintenance;
use crate::http::policy_chain::{PolicyChain, RequestOutcome};
use crate::http::request_body::Upload;
use crate::http::response::{Abandoned, PendingResponse, RequestTraits};
use crate::http::response_body::ResponseBody;
use crate::http::routing::{self, Route};
use crate::http::send_response::{finish, refuse, send};
use crate::http::upgrade::{self, UpgradeRequest};
use crate::recording::traces;
use crate::snapshot::group::Member;
use crate::snapshot::live_snapshot::LiveSnapshot;

/// Serves one request of a client.
pub(crate) async fn serve(
    down: Arc<Downstream>,
    mut parts: Box<request::Parts>,
    body: Upload,
) -> Result<Response<ResponseBody>, Abandoned> {
    // Upstreams rely on these fields, so a client must not send them.
    maintenance::strip_edges_own(&mut parts);
    // From here on, an extended CONNECT of HTTP/2 looks like an upgrade of HTTP/1.1.
    let extended_connect = upgrade::translate(&mut parts);
    // From here on, only the edge's own actions see its cookies.
    if let Some(cookies) = own_cookies::take(&mut parts.headers) {
        parts.extensions.insert(cookies);
    }
    let wanted = extended_connect.unwrap_or_else(|| upgrade::requested(&parts, !body.is_ended()));
    let mut exchange = HttpExchange::begin(Arc::clone(&down), parts.version);
    let mut traits = RequestTraits::of(&parts);
    if wanted != UpgradeRequest::Http || upgrade::is_ignored(&parts) {
        // The client may have sent data ahead, which is no request.
        traits.keeps_alive = false;
    }
    let admitted = match admit(&mut exchange, &parts) {
        // Before routing: the callback address is no endpoint. With an outdated configuration, routing refuses it.
        Ok(None)
            if culvert_login::may_be_callback(parts.uri.path())
                && !down.edge.freshness.is_outdated() =>
        {
            Ok(Box::pin(central_callback(&down, &parts)).await)
        }
        admitted => admitted,
    };
    let routed = match admitted {
        Ok(None) => routing::route(&mut exchange, &mut parts),
        Ok(Some(response)) => Ok(Route::Respond(response)),
        Err(problem) => Err(problem),
    };
    let (member, authority) = match routed {
        Ok(Route::Endpoint(member, authority)) => (member, authority),
        Ok(Route::Respond(response)) => {
            return Ok(send(exchange, PendingResponse::whole(response), &traits));
        }
        Err(problem) => {
            routing::attribute(&mut exchange, &parts, problem);
            return Ok(refuse(exchange, problem, &traits));
        }
    };
    // After routing, which records the fields as received for the event. Policies see what the upstream gets.
    routing::set_authority(&mut parts, &authority);
    fields::strip_mixed_up(&mut parts.headers, down.conn.rules.underscore_headers);
    if let Some(tracing) = &down.edge.tracing {
        let reached = (down.context(), exchange.count.began(), &*member.endpoint);
        traces::begin(&mut exchange.recording, tracing, reached, &parts);
    }
    if body.size_hint().lower() > down.conn.rules.limits.body_bytes {
        return Ok(refuse(exchange, Problem::Oversized, &traits));
    }
    let request = ForwardRequest {
        member,
        parts,
        body,
        authority,
        is_prepared: false,
        policies_set: PolicyFields::default(),
        is_call: false,
    };
    let response = respond(&mut exchange, request, &wanted, &traits).await?;
    Ok(finish(exchange, response, wanted, &traits).await)
}

/// The response of an endpoint: runs request policies, forwards, and runs response policies.
pub(super) async fn respond(
    exchange: &mut HttpExchange,
    request: ForwardRequest,
    wanted: &UpgradeRequest,
    traits: &RequestTraits,
) -> Result<PendingResponse, Abandoned> {
    exchange.reached(request.member.endpoint.timeouts);
    let (endpoint, extensions) = (&request.member.endpoint, &request.parts.extensions);
    let conn = &exchange.down().conn;
    let closed = PendingResponse::of_maintenance(endpoint, extensions, traits, conn);
    if let Some(response) = closed {
        return Ok(response);
    }
    let mut policies = PolicyChain::default();
    let outcome = if request.member.endpoint.policy.is_some() {
        // Boxed, so that the futures of endpoints without a policy are small.
        Box::pin(policies.run_request_phases(exchange, request, (wanted, traits))).await?
    } else {
        RequestOutcome::Forward(request, None)
    };
    let sent = match outcome {
        RequestOutcome::Forward(request, edits) => {
            let sent = forward(exchange, request, wanted, edits).await?;
            policies.note_upstream_status(&sent);
            sent
        }
        RequestOutcome::Respond(response) => Ok(response),
        RequestOutcome::Reject(problem) => Err(problem),
    };
    let mut response = sent.unwrap_or_else(|problem| {
        let noted = exchange.recording.reason();
        PendingResponse::of(problem, noted, traits, &exchange.down().conn)
    });
    if !policies.is_empty() {
        Box::pin(policies.run_response_phases(exchange, &mut response, traits)).await?;
    }
    // Behind the policies: they neither see nor remove what the edge needs to know the client again.
    if let Some(cookie) = exchange.sticky_cookie.take() {
        response.head.headers.append(SET_COOKIE, *cookie);
    }
    Ok(response)
}

/// Rejects a request, or responds to it before routing. `None` if it is to be routed.
fn admit(
    exchange: &mut HttpExchange,
    parts: &request::Parts,
) -> Result<Option<Response<Bytes>>, Problem> {
    let down = Arc::clone(exchange.down());
    let meters = &down.edge.state.meters;
    // The HTTP/2 server found that the head must be refused with a status.
    if let Some(Refused(violation)) = parts.extensions.get() {
        meters.requests_refused.up();
        return Err(Problem::Violation(*violation));
    }
    // An HTTP/1 connection has one request at a time, so the limit of its head is enough.
    if parts.version == Version::HTTP_2 {
        let bytes = head_bytes(parts);
        if !can_hold_head(&down, bytes) {
            return Err(Problem::Violation(Violation::FieldsTooLarge));
        }
        exchange.hold_head(bytes);
    }
    // Before the check for overload, so that certificates are issued and renewed even then.
    if let Some(response) = challenge(&down, parts) {
        meters.challenges_answered.up();
        return Ok(Some(response));
    }
    if down.edge.state.level() == Level::Full {
        meters.shed_requests.up();
        return Err(Problem::Overloaded);
    }
    Ok(None)
}

/// The size of a head's target and fields, with the overhead per field of RFC 9113 6.5.2.
fn head_bytes(parts: &request::Parts) -> usize {
    let target = parts
        .uri
        .path_and_query()
        .map_or(0, |target| target.as_str().len());
    let fields = parts.headers.iter();
    fields.fold(target, |sum, (name, value)| {
        sum + name.as_str().len() + value.len() + FIELD_OVERHEAD
    })
}

/// The response to an HTTP-01 challenge of a certificate authority, at any host. Other requests are routed, and a
/// malformed one is rejected there.
fn challenge(down: &Downstream, parts: &request::Parts) -> Option<Response<Bytes>> {
    let live = down.edge.live.load();
    let is_none = down.conn.info.tls.get().is_some()
        || live.challenges.has_no_files()
        || ![Method::GET, Method::HEAD].contains(&parts.method);
    if is_none {
        return None;
    }
    let mut hosts = parts.headers.get_all(HOST).iter();
    let authority = Authority::of(parts.version, &parts.uri, hosts.next()).ok()?;
    if hosts.next().is_some() {
        return None;
    }
    let file = live.challenges.file(&authority.host, parts.uri.path())?;
    let length = HeaderValue::from(file.len());
    let mut response = Response::new(file);
    let media = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(CONTENT_TYPE, media);
    response.headers_mut().insert(CONTENT_LENGTH, length);
    Some(response)
}

/// The response to a request to the common callback address of sign-ins. `None` for other requests.
async fn central_callback(
    down: &Arc<Downstream>,
    parts: &request::Parts,
) -> Option<Response<Bytes>> {
    let now = down.conn.info.now();
    let found = {
        let live = down.edge.live.load();
        let callback = CentralCallback::read(live.logins.as_ref()?, parts, now)?;
        callback.and_then(|callback| {
            // Sign-ins need the database, which knows the sessions that ended.
            if down.edge.policy.is_from_copy {
                return Err(Problem::NeedsDatabase);
            }
            let member = signing_member(down, &live, &callback)?;
            Ok((callback, member))
        })
    };
    let problem = |problem: Problem| {
        let host = reply::host(&parts.uri, &parts.headers);
        let to = down.conn.reply_context(parts.headers.get(ACCEPT), host);
        Some(problem.answer(&to))
    };
    let (callback, member) = match found {
        Ok(found) => found,
        Err(why) => return problem(why),
    };
    let Some(policy) = &member.endpoint.policy else {
        return problem(Problem::LoginState);
    };
    let mut memory = Memory::new(now);
    let (endpoint, conn) = (member.endpoint.info(), down.context());
    let mut x = Exchange::new(Phase::Request, policy, endpoint, conn, &mut memory);
    x.request = Some(parts);
    Some(callback.finish(&mut x).await)
}

/// The endpoint whose sign-in a callback completes. It must still be at the host where the sign-in began, or be an
/// internal one of the same account.
fn signing_member(
    down: &Downstream,
    live: &LiveSnapshot,
    callback: &CentralCallback,
) -> Result<Arc<Member>, Problem> {
    // Both tables: behind a proxy that terminates TLS, the endpoint is http, though browsers use https.
    for table in [&live.https, &live.http] {
        let Some(group) = table.find(callback.host()) else {
            continue;
        };
        let serving = match callback.internal() {
            None => Some(group),
            Some((scheme, host, port)) => live.internal(group.account(), scheme, host, port),
        };
        let mut members = serving.into_iter().flat_map(|group| group.members());
        let Some(member) = members.find(|member| *member.id == *callback.endpoint()) else {
            continue;
        };
        return match group.admits(down.conn.info.client.ip()) {
            true => Ok(Arc::clone(member)),
            false => Err(Problem::Restricted),
        };
    }
    Err(Problem::LoginState)
}
