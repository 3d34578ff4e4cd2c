//! Replays: requests that the server sends to one of its endpoints again.
//!
//! A replay is an exchange without a client: it reaches the endpoint as if it came from this host, through the policy
//! or directly to the upstream, and makes an event like any other. The field [`REPLAY_OF`] marks it. The edge removes
//! that field from requests of clients, so the mark is authentic.
//!
//! Rules of the connection phase apply. IP restrictions of the account do not: they are about clients. An endpoint
//! that asks for client certificates accepts no replay through its policy.

use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use culvert_edge_config::{NotReplayed, ReplayRequest, Replayed};
use culvert_http::authority::Authority;
use culvert_http::fields::strip_named;
use culvert_http::target;
use culvert_policy::conn::TlsInfo;
use culvert_policy::own_cookies;
use http::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName};
use http::{HeaderValue, Method, StatusCode, Version, request};
use http_body::Body;

use crate::connection::connection_phase::{self, Admission};
use crate::connection::downstream::Downstream;
use crate::connection::replay_state::{REPLAY_OF, ReplayState};
use crate::edge::edge_context::EdgeContext;
use crate::http::exchange::HttpExchange;
use crate::http::fields;
use crate::http::forward::forward;
use crate::http::forward_request::{ForwardRequest, PolicyFields};
use crate::http::pipeline;
use crate::http::request_body::Upload;
use crate::http::response::{PendingResponse, RequestTraits};
use crate::http::send_response::send;
use crate::http::upgrade::UpgradeRequest;
use crate::recording::{recorded, traces};
use crate::snapshot::group::{Group, Member};

/// How long a replay may take.
const REPLAYED_WITHIN: Duration = Duration::from_secs(30);
/// Most bytes of its response that are read.
const RESPONSE_BYTES_MAX: u64 = 16 << 20;

/// Sends a request to one of the endpoints of this edge.
pub(crate) async fn replay(
    edge: &Arc<EdgeContext>,
    request: ReplayRequest,
) -> Result<Replayed, NotReplayed> {
    if edge.state.is_closing() || edge.freshness.is_outdated() {
        return Err(NotReplayed::Unavailable);
    }
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let shared = Arc::clone(edge);
    let task = edge.state.contain(async move {
        // The caller may have gone; the request is sent nevertheless.
        let _gone = sender.send(run(&shared, request).await);
    });
    // Connections to upstreams belong to the thread that opened them.
    match edge.threads.next() {
        Some(thread) => edge.state.tasks.spawn_on(task, thread),
        None => edge.state.tasks.spawn(task),
    };
    receiver.await.unwrap_or(Err(NotReplayed::Unavailable))
}

async fn run(edge: &Arc<EdgeContext>, request: ReplayRequest) -> Result<Replayed, NotReplayed> {
    let authority = request.authority.clone();
    let authority = Authority::parse(&authority).map_err(|_| NotReplayed::Malformed)?;
    let (group, member) = find(edge, &request, &authority.host)?;
    let here = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let down = Downstream::new(Arc::clone(edge), here, here, None);
    let new = || ReplayState::new(&*edge.policy.entropy);
    let state = down.conn.replay.get_or_init(new);
    if request.is_https {
        secure(&down, &member, &authority.host, request.skips_policy).await?;
    }
    let sending = exchange(&down, &group, &member, &authority, request);
    let cut = poll_fn(|cx| {
        down.conn.driver.register(cx.waker());
        match down.conn.is_cut() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    });
    let status = tokio::select! {
        biased;
        sent = tokio::time::timeout(REPLAYED_WITHIN, sending) => match sent {
            Ok(Err(why)) => return Err(why),
            Ok(Ok(status)) => status,
            Err(_) => None,
        },
        () = cut => None,
        () = edge.accepting.cancelled() => None,
    };
    Ok(Replayed {
        event: state.event(),
        status: status.map(|status| status.as_u16()),
    })
}

/// The endpoint, if it serves the host.
fn find(
    edge: &EdgeContext,
    request: &ReplayRequest,
    host: &str,
) -> Result<(Arc<Group>, Arc<Member>), NotReplayed> {
    let live = edge.live.load();
    let table = if request.is_https {
        &live.https
    } else {
        &live.http
    };
    let group = table.find(host).ok_or(NotReplayed::NoEndpoint)?;
    let mut members = group.members();
    let member = members.find(|member| *member.id == *request.endpoint);
    let member = member.ok_or(NotReplayed::NoEndpoint)?;
    Ok((Arc::clone(group), Arc::clone(member)))
}

/// Gives the connection the TLS state that a client's connection would have.
async fn secure(
    down: &Arc<Downstream>,
    member: &Member,
    host: &str,
    skips_policy: bool,
) -> Result<(), NotReplayed> {
    let edge = &down.edge;
    down.conn.info.set_sni(host.to_owned());
    let mut tls_policy = None;
    if !skips_policy {
        match connection_phase::first(down, &member.endpoint).await {
            Admission::Accept(wanted) => tls_policy = wanted,
            Admission::Forward(..) | Admission::Reject => return Err(NotReplayed::Refused),
        }
        if let Some(wanted) = &tls_policy
            && wanted.asks_for_certificates()
        {
            return Err(NotReplayed::Refused);
        }
    }
    let own = edge.certificate(&edge.live.load(), host);
    // Without a certificate no client could connect either.
    let certificate = own.ok_or(NotReplayed::NoEndpoint)?;
    down.conn.info.tls.get_or_init(|| TlsInfo {
        certificate,
        tls_policy,
        handshake: OnceLock::new(),
    });
    Ok(())
}

/// The fields of the request. `None` if one is malformed.
fn fields_of(given: &[(String, String)]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).ok()?);
    }
    // A proxy in front of the edge may be trusted to set forwarding fields; this client is none.
    culvert_http::fields::strip(&mut headers, |name| {
        fields::says_who_calls(name) || matches!(name, "content-length" | "expect" | "host")
    });
    let _said = fields::strip_edges_own(&mut headers);
    own_cookies::take(&mut headers);
    Some(headers)
}

/// Sends the request, and reads the response to its end. Returns its status.
async fn exchange(
    down: &Arc<Downstream>,
    group: &Group,
    member: &Arc<Member>,
    authority: &Authority<'_>,
    request: ReplayRequest,
) -> Result<Option<StatusCode>, NotReplayed> {
    let mut parts: Box<request::Parts> = Box::new(http::Request::new(()).into_parts().0);
    // HTTP/2 has no state of the connection between exchanges.
    parts.version = Version::HTTP_2;
    let method = Method::from_bytes(request.method.as_bytes());
    parts.method = method.map_err(|_| NotReplayed::Malformed)?;
    let target = target::settle(&request.target, member.endpoint.merge_slashes);
    parts.uri = target.map_err(|_| NotReplayed::Malformed)?.into();
    let policy = member.endpoint.policy.as_ref();
    // The service never gets requests to paths of the edge.
    if request.skips_policy && policy.is_some_and(|policy| policy.owns_path(parts.uri.path())) {
        return Err(NotReplayed::Refused);
    }
    parts.headers = fields_of(&request.headers).ok_or(NotReplayed::Malformed)?;
    fields::strip_mixed_up(&mut parts.headers, down.conn.rules.underscore_headers);
    let value = |text| HeaderValue::from_str(text).map_err(|_| NotReplayed::Malformed);
    let normal = authority.normal();
    let host = value(&normal)?;
    parts.headers.insert(HOST, host.clone());
    parts.headers.insert(REPLAY_OF, value(&request.event)?);
    if !request.body.is_empty() {
        let length = HeaderValue::from(request.body.len());
        parts.headers.insert(CONTENT_LENGTH, length);
    }
    let traits = RequestTraits::of(&parts);
    let mut exchange = HttpExchange::begin(Arc::clone(down), Version::HTTP_2);
    exchange.attribute(group, member, recorded(&parts), authority);
    if let Some(tracing) = &down.edge.tracing {
        let reached = (down.context(), exchange.count.began(), &*member.endpoint);
        traces::begin(&mut exchange.recording, tracing, reached, &parts);
    }
    if let Some(received) = exchange.recording.count_received() {
        received.store(request.body.len() as u64, Ordering::Relaxed);
    }
    if let (true, Some(policy)) = (request.skips_policy, &member.endpoint.policy) {
        // The upstream relies on them. The policy, which writes them, does not run.
        strip_named(&mut parts.headers, policy.identity_fields().iter());
    }
    let forwarded = ForwardRequest {
        member: Arc::clone(member),
        parts,
        body: Upload::whole(request.body.into()),
        authority: host,
        is_prepared: false,
        policies_set: PolicyFields::default(),
        is_call: false,
    };
    let pending = match request.skips_policy {
        false => pipeline::respond(&mut exchange, forwarded, &UpgradeRequest::Http, &traits).await,
        true => {
            exchange.reached(member.endpoint.timeouts);
            let sent = forward(&mut exchange, forwarded, &UpgradeRequest::Http, None).await;
            let noted = exchange.recording.reason();
            let of = |problem| PendingResponse::of(problem, noted, &traits, &down.conn);
            sent.map(|sent| sent.unwrap_or_else(of))
        }
    };
    let Ok(pending) = pending else {
        return Ok(None);
    };
    let status = pending.head.status;
    let mut body = send(exchange, pending, &traits).into_body();
    let mut read = 0;
    while read <= RESPONSE_BYTES_MAX {
        match poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            Some(Ok(frame)) => read += frame.data_ref().map_or(0, Bytes::len) as u64,
            Some(Err(_)) | None => break,
        }
    }
    Ok(Some(status))
}
