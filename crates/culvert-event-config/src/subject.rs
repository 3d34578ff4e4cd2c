//! What the subject holds.

use std::sync::{Arc, Mutex};

use culvert_delivery::Delivery;
use culvert_events::catalogue::Catalogue;
use culvert_resources::Kernel;
use culvert_resources::stored::lost_events::LostEvents;
use culvert_target::TargetTypes;

use crate::edge_reports::refused_traffic::RefusedCounts;
use crate::edge_reports::upstream_reports::UpstreamReports;
use crate::ports::EdgePort;
use crate::replay::replay_limits::ReplayLimits;
use crate::statistics::Statistics;

/// Decides which events go where, and finds kept events.
#[derive(Debug)]
pub struct EventConfig {
    pub(crate) kernel: Arc<Kernel>,
    /// Every kind of event.
    pub catalogue: &'static Catalogue,
    /// Runs subscriptions and destinations.
    pub delivery: Arc<Delivery>,
    /// What destinations may be.
    pub target_types: TargetTypes,
    /// Sends requests again, if this process has an edge.
    pub(crate) edge: Option<Arc<dyn EdgePort>>,
    /// Limits on requests that are sent again.
    pub(crate) replays: ReplayLimits,
    /// Losses that no event tells of yet.
    pub(crate) untold_losses: Mutex<Vec<LostEvents>>,
    /// Traffic that the edge refused and that names no endpoint.
    pub(crate) refused: RefusedCounts,
    /// Upstreams whose health changed.
    pub(crate) upstream_reports: UpstreamReports,
    /// The statistics of the installation.
    pub statistics: Statistics,
}

impl EventConfig {
    /// The subject. `edge` is `None` in a process without an edge.
    pub fn new(
        kernel: Arc<Kernel>,
        catalogue: &'static Catalogue,
        delivery: Arc<Delivery>,
        target_types: TargetTypes,
        edge: Option<Arc<dyn EdgePort>>,
        statistics: Statistics,
    ) -> Self {
        Self {
            kernel,
            catalogue,
            delivery,
            target_types,
            edge,
            replays: ReplayLimits::default(),
            untold_losses: Mutex::default(),
            refused: RefusedCounts::default(),
            upstream_reports: UpstreamReports::default(),
            statistics,
        }
    }
}

impl AsRef<Kernel> for EventConfig {
    fn as_ref(&self) -> &Kernel {
        &self.kernel
    }
}
