//! What the edge knows about the health of the upstreams of an endpoint.

use std::sync::Arc;
use std::time::Duration;

use culvert_base::Timestamp;

/// The health of an upstream as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamStatus {
    /// Its URL.
    pub url: String,
    /// Whether it serves as far as is known.
    pub is_healthy: bool,
    /// Whether it gets traffic. One that is not healthy does while too few others are left.
    pub is_used: bool,
    /// Why it is not healthy; empty if it is.
    pub reason: String,
    /// How much longer it is ejected; `None` if it is not.
    pub ejected_for: Option<Duration>,
    /// Requests and connections that it serves now.
    pub open_requests: u32,
    /// Failures of requests in a row.
    pub failures: u32,
    /// The last check; `None` if there was none.
    pub last_check: Option<CheckReport>,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// When it ended.
    pub at: Timestamp,
    /// How long it took.
    pub duration: Duration,
    /// Why it did not pass; empty if it did.
    pub failure: String,
}

/// An upstream that is unhealthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnhealthyUpstream {
    /// ID of the endpoint.
    pub endpoint: Arc<str>,
    /// Account of the endpoint.
    pub account: Arc<str>,
    /// ID of the owner of the endpoint.
    pub owner: Arc<str>,
    /// URL of the upstream.
    pub url: String,
    /// Why.
    pub reason: String,
    /// For how long.
    pub lasts: Duration,
}
