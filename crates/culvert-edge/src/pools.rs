//! Connections to upstreams with the bodies, tasks and counters of the edge.

use std::sync::Arc;

use culvert_base::Meter;
use culvert_upstream::PoolOwner;

use crate::balance::{attempt, target_set};
use crate::edge::edge_state::EdgeState;
use crate::http::request_body::RequestBody;

/// The connections to one upstream.
pub(crate) type Pool = culvert_upstream::Pool<RequestBody>;
/// The upstreams of one endpoint.
pub(crate) type TargetSet = target_set::TargetSet<RequestBody>;
/// An attempt at one of these upstreams.
pub(crate) type Attempt<'t> = attempt::Attempt<'t, RequestBody>;
/// An HTTP/1 connection leased to one exchange.
pub(crate) type Lease = culvert_upstream::Lease<RequestBody>;
/// A stream of an HTTP/2 connection.
pub(crate) type Http2Stream = culvert_upstream::Http2Stream<RequestBody>;
/// A stream with a pending extended CONNECT.
pub(crate) type PendingStream = culvert_upstream::PendingStream<RequestBody>;
/// Opens connections on behalf of a client's connection.
pub(crate) type Connector<'x> = culvert_upstream::Connector<'x, EdgeState>;

impl PoolOwner for EdgeState {
    fn connects(&self) -> &Meter {
        &self.meters.upstream_connects
    }

    fn connects_failed(&self) -> &Meter {
        &self.meters.upstream_connects_failed
    }

    fn track(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        self.track(task);
    }
}
