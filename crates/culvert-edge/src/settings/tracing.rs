//! How requests are traced.

use std::sync::Arc;

use culvert_policy::Policy;
use culvert_traces::Tracer;

/// How requests are traced.
#[derive(Clone, Debug)]
pub struct Tracing {
    /// Decides which requests are recorded, and has the queue of the exporter.
    pub tracer: Arc<Tracer>,
    /// The expression that decides it, if the tracer [has one](Tracer::has_condition).
    pub condition: Option<Arc<Policy>>,
}
