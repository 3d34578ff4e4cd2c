//! Requests that a policy sends itself: to internal endpoints, which respond as to a forwarded request, or to other
//! hosts.

use std::sync::Arc;

use culvert_base::{BoxFuture, Share};
use culvert_http::target;
use culvert_policy::Scheme;
use culvert_policy::host::{
    ANSWER_BYTES_MAX, Called, EndpointInfo, NextEndpoint, NotCalled, NotReached, PolicyHost,
    Reservation,
};
use culvert_policy::identity::KEY_SET_PATH;
use culvert_policy::own_cookies;
use culvert_policy::policy::run::EDGE_PATHS;
use culvert_policy::services::{Call, Fetch, FetchScope};
use http::header::HOST;
use http::{HeaderValue, request};
use url::Position;

use crate::connection::downstream::Downstream;
use crate::http::body_memory::{BodyReservation, NotBuffered};
use crate::http::exchange::HttpExchange;
use crate::http::fields;
use crate::http::forward_request::{ForwardRequest, PolicyFields};
use crate::http::pipeline;
use crate::http::request_body::Upload;
use crate::http::response::{PendingResponse, RequestTraits};
use crate::http::upgrade::UpgradeRequest;
use crate::snapshot::group::Member;

impl PolicyHost for Downstream {
    fn internal(
        &self,
        from: EndpointInfo<'_>,
        scheme: Scheme,
        host: &str,
        port: u16,
    ) -> Result<NextEndpoint, NotReached> {
        let live = self.edge.live.load();
        let group = live.internal(from.account, scheme, host, port);
        let group = group.ok_or(NotReached::Offline)?;
        let may_use = |member: &Member| live.may_forward(from, host, &member.endpoint);
        let member = group.pick_among(self.edge.agents(), may_use);
        let member = member.ok_or(NotReached::Forbidden)?;
        let paths = [EDGE_PATHS, KEY_SET_PATH].into_iter();
        let mut for_edge = paths.map(|path| group.edge_path_member_among(path, may_use));
        let for_edge = for_edge.find_map(|member| member);
        Ok(match for_edge {
            Some(for_edge) if !Arc::ptr_eq(for_edge, member) => {
                let (member, for_edge) = (Arc::clone(member), Arc::clone(for_edge));
                NextEndpoint::new(Arc::new(Pooled { member, for_edge }))
            }
            _ => NextEndpoint::new(Arc::clone(member)),
        })
    }

    fn call(
        &self,
        share: Share,
        to: NextEndpoint,
        call: Call,
    ) -> BoxFuture<'_, Result<Called, NotCalled>> {
        Box::pin(async move {
            let down = self.this.upgrade().ok_or(NotCalled::Closed)?;
            let member = member_for(to, call.url.path()).ok_or(NotCalled::Unusable)?;
            internal(&down, share, member, call).await
        })
    }

    fn call_public(&self, share: Share, call: Call) -> BoxFuture<'_, Result<Called, NotCalled>> {
        Box::pin(async move {
            let down = self.this.upgrade().ok_or(NotCalled::Closed)?;
            public(&down, share, call).await
        })
    }
}

/// An endpoint of several at one address, and another one there, which handles requests to paths of the edge.
struct Pooled {
    member: Arc<Member>,
    for_edge: Arc<Member>,
}

/// The endpoint that a request to this path goes to; `None` if the next one is of another kind.
pub(super) fn member_for(next: NextEndpoint, path: &str) -> Option<Arc<Member>> {
    let Some(pooled) = next.clone().endpoint::<Pooled>() else {
        return next.endpoint();
    };
    let policy = pooled.for_edge.endpoint.policy.as_ref();
    let member = match policy.is_some_and(|policy| policy.owns_path(path)) {
        true => &pooled.for_edge,
        false => &pooled.member,
    };
    Some(Arc::clone(member))
}

fn not_called(why: NotBuffered) -> NotCalled {
    match why {
        NotBuffered::TooLong => NotCalled::TooLong,
        NotBuffered::MemoryFull => NotCalled::NoRoom,
        NotBuffered::TooSlow => NotCalled::TooSlow,
        NotBuffered::Broken | NotBuffered::Coding => NotCalled::Closed,
    }
}

/// Sends the request to an internal endpoint.
async fn internal(
    down: &Arc<Downstream>,
    share: Share,
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
    own_cookies::take(&mut parts.headers);
    parts.headers.insert(HOST, authority.clone());
    let traits = RequestTraits::of(&parts);
    let mut exchange = HttpExchange::call(Arc::clone(down));
    exchange.passes(&member);
    let request = ForwardRequest {
        member,
        parts,
        body: Upload::whole(call.body),
        authority,
        is_prepared: true,
        policies_set: PolicyFields::default(),
        is_call: true,
    };
    let response = pipeline::respond(&mut exchange, request, &UpgradeRequest::Http, &traits).await;
    let PendingResponse {
        head, mut source, ..
    } = response.map_err(|_| NotCalled::Closed)?;
    let upstream = exchange.recording.upstream_use();
    exchange.count.answer(head.status, upstream);
    let held = source.hold(share, ANSWER_BYTES_MAX, &down.conn);
    let (body, room) = held.await.map_err(not_called)?;
    exchange.count.sent(body.len());
    Ok(Called {
        head,
        body,
        room: Reservation::new(room),
    })
}

/// Sends the request to another host.
async fn public(down: &Arc<Downstream>, share: Share, mut call: Call) -> Result<Called, NotCalled> {
    own_cookies::take(&mut call.headers);
    let mut room = BodyReservation::new(&down.conn, share);
    room.grow(ANSWER_BYTES_MAX).map_err(|_| NotCalled::NoRoom)?;
    let url = call.url.clone();
    let answered = down
        .edge
        .network
        .fetch(share, FetchScope::Public, call, ANSWER_BYTES_MAX);
    let (mut head, body) = answered.await.map_err(|why| {
        tracing::debug!(host = url.host_str(), why, "policy request failed");
        NotCalled::Elsewhere
    })?;
    fields::to_client(&mut head.headers);
    Ok(Called {
        head,
        body,
        room: Reservation::new(room),
    })
}
