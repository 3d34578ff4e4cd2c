//! The interface of the edge that control uses.

use std::fmt::Debug;
use std::time::Instant;

use culvert_base::BoxFuture;
use culvert_edge_config::{
    Change, NotReplayed, ReplayRequest, Replayed, Snapshot, UnhealthyUpstream, UpstreamStatus,
};
use culvert_events::RefusedTraffic;

/// Receives snapshots for the edge.
pub trait EdgePort: Debug + Send + Sync {
    /// Replaces the snapshot. Completes when the new one is live.
    fn publish(&self, snapshot: Snapshot) -> BoxFuture<'_, ()>;

    /// Applies `change` to the current snapshot. Completes when the result is live.
    fn apply(&self, change: Change) -> BoxFuture<'_, ()>;

    /// Notes that the configuration was current at this time.
    fn confirm(&self, at: Instant);

    /// Takes what was refused without an endpoint since the last call.
    fn take_refused(&self) -> Vec<RefusedTraffic>;

    /// The upstreams of all endpoints that are unhealthy; `None` if it stops.
    fn unhealthy_upstreams(&self) -> Option<Vec<UnhealthyUpstream>>;

    /// The health of the upstreams of an endpoint, in the order of its list; `None` if it has no list.
    fn upstream_statuses(&self, endpoint_id: &str) -> Option<Vec<UpstreamStatus>>;

    /// Sends a request to an endpoint again.
    fn replay(&self, request: ReplayRequest) -> BoxFuture<'_, Result<Replayed, NotReplayed>>;
}
