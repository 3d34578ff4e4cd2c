//! The connection phase: whether a connection may go on at all, and where to.

use std::sync::Arc;

use crate::downstream::Downstream;
use crate::policy::{Exchange, Flow, Memory, Phase};
use crate::snapshot::{Endpoint, Member};

/// What becomes of a connection.
#[derive(Debug)]
pub(crate) enum Entry {
    /// It goes on.
    In,
    /// It goes to another endpoint.
    Forward(Arc<Member>),
    /// It is closed.
    Out,
}

/// Runs the connection phase of the policy of an HTTP endpoint, unless it has run for this connection,
/// and says whether the connection goes on. In clear this happens with the first request that names the
/// endpoint, over TLS before the handshake.
pub(crate) async fn admits(down: &Arc<Downstream>, endpoint: &Endpoint) -> bool {
    let Some(policy) = &endpoint.policy else {
        return true;
    };
    if policy.rules(Phase::Connect).is_empty() {
        return true;
    }
    if let Some(is_in) = down.entered(policy) {
        return is_in;
    }
    let is_in = matches!(enter(down, endpoint, 0).await, Entry::In);
    down.enter(policy, is_in);
    is_in
}

/// Runs the connection phase of an endpoint's policy, after `hops` endpoints before it.
pub(crate) async fn enter(down: &Arc<Downstream>, endpoint: &Endpoint, hops: usize) -> Entry {
    let Some(policy) = &endpoint.policy else {
        return Entry::In;
    };
    down.speaks_http(endpoint.scheme.is_http());
    // In a box: an idle connection's task keeps no room for it.
    let run = Box::pin(async move {
        let mut memory = Memory::new(down.now());
        memory.hops = hops;
        let mut x = Exchange::new(Phase::Connect, policy, endpoint, down, &mut memory);
        x.run().await
    });
    match run.await {
        Flow::Continue => Entry::In,
        Flow::Forward(member) => Entry::Forward(member),
        Flow::Reply(_) | Flow::Close | Flow::Broken => Entry::Out,
    }
}
