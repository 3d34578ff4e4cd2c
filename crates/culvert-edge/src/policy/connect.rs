//! The connection phase: whether a connection may go on at all.

use std::sync::Arc;

use crate::downstream::Downstream;
use crate::policy::{Exchange, Flow, Memory, Phase};
use crate::snapshot::Endpoint;

/// Runs the connection phase of an endpoint's policy, unless it has run for this connection, and says
/// whether the connection goes on. In clear this happens with the first request that names the
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
    // In a box: an idle connection's task keeps no room for it.
    let run = Box::pin(async move {
        let mut memory = Memory::new(down.now());
        let mut x = Exchange::new(Phase::Connect, policy, endpoint, down, &mut memory);
        x.run().await
    });
    let is_in = matches!(run.await, Flow::Continue);
    down.enter(policy, endpoint.scheme.is_http(), is_in);
    is_in
}
