//! The connection phase: whether a connection is accepted, its endpoint, and its TLS handshake.

use std::sync::Arc;

use culvert_edge_config::Endpoint;
use culvert_policy::policy::exchange::{Exchange, Memory};
use culvert_policy::policy::phase::Phase;
use culvert_policy::policy::run::Flow;
use culvert_tls::tls_policy::TlsPolicy;

use crate::connection::downstream::Downstream;
use crate::snapshot::group::Member;

/// The decision about a connection.
#[derive(Debug)]
pub(crate) enum Admission {
    /// It is accepted, with a handshake under this TLS policy if there is one.
    Accept(Option<Arc<TlsPolicy>>),
    /// It goes to another endpoint.
    Forward(Arc<Member>, Option<Arc<TlsPolicy>>),
    /// It is closed.
    Reject,
}

/// Whether a request may reach an HTTP endpoint. Runs the connection phase of the endpoint's policy, unless it has run
/// for this connection: without TLS, that is at the first request that names the endpoint.
pub(crate) async fn admits(down: &Arc<Downstream>, endpoint: &Endpoint) -> bool {
    matches!(first(down, endpoint).await, Admission::Accept(_))
}

/// Runs the connection phase of the policy of an HTTP endpoint, unless it has run for this connection. With TLS it runs
/// before the handshake. A connection is rejected if its handshake took place under an older TLS policy.
pub(crate) async fn first(down: &Arc<Downstream>, endpoint: &Endpoint) -> Admission {
    let Some(policy) = &endpoint.policy else {
        return Admission::Accept(None);
    };
    if policy.rules(Phase::Connect).is_empty() {
        return Admission::Accept(None);
    }
    match down.conn.policy.entered(policy) {
        Some(true) => return Admission::Accept(None),
        Some(false) => return Admission::Reject,
        None => {}
    }
    let mut admission = enter(down, endpoint, 0, None).await;
    if let Admission::Accept(Some(tls_policy)) = &admission {
        let made = down
            .conn
            .info
            .tls
            .get()
            .and_then(|tls| tls.tls_policy.as_ref());
        // The policy of an internal endpoint had no part in the handshake. If it asks for client certificates, the
        // request is rejected.
        let is_fulfilled = match endpoint.is_internal() {
            true => !tls_policy.asks_for_certificates(),
            false => {
                down.conn.info.tls.get().is_none()
                    || made.is_some_and(|own| Arc::ptr_eq(own, tls_policy))
            }
        };
        if !is_fulfilled {
            admission = Admission::Reject;
        }
    }
    down.conn
        .policy
        .enter(policy, matches!(admission, Admission::Accept(_)));
    admission
}

/// Runs the connection phase of an endpoint's policy, after those of `hops` endpoints, which resulted in `tls_policy`. Rules
/// of this policy about the handshake are merged into it.
pub(crate) async fn enter(
    down: &Arc<Downstream>,
    endpoint: &Endpoint,
    hops: usize,
    tls_policy: Option<Arc<TlsPolicy>>,
) -> Admission {
    let Some(policy) = &endpoint.policy else {
        return Admission::Accept(tls_policy);
    };
    down.conn.policy.speaks_http(endpoint.scheme.is_http());
    // In a box, so that the task of an idle connection is small.
    let run = Box::pin(async move {
        let mut memory = Memory::new(down.conn.info.now());
        memory.hops = hops;
        let mut x = Exchange::new(
            Phase::Connect,
            policy,
            endpoint.info(),
            down.context(),
            &mut memory,
        );
        x.edits.tls_policy = tls_policy;
        let flow = x.run().await;
        (flow, x.edits.tls_policy.take())
    });
    match run.await {
        (Flow::Continue, tls_policy) => Admission::Accept(tls_policy),
        (Flow::Forward(next), tls_policy) => match next.endpoint::<Member>() {
            Some(member) => Admission::Forward(member, tls_policy),
            None => Admission::Reject,
        },
        (Flow::Reply(_) | Flow::Close | Flow::Broken, _) => Admission::Reject,
    }
}
