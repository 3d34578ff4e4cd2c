//! The statistics of this node, and the reports of what its edge refuses.

use std::sync::{Arc, Mutex};

use anyhow::Result;
use culvert_base::BoxFuture;
use culvert_control::Control;
use culvert_metrics::NodeSource;
use tokio_util::sync::CancellationToken;

use crate::server::foundation::Foundation;
use crate::server::part::{self, Name, Reason, Start};

pub(super) struct Part {
    control: Arc<Control>,
    source: Arc<NodeSource>,
}

impl Part {
    pub(super) fn new(foundation: &Foundation) -> Self {
        let opened = &foundation.opened;
        Self {
            control: foundation.control.clone(),
            source: Arc::new(NodeSource {
                node: opened.settings.node(),
                edge: foundation.edge.clone(),
                delivery: foundation.delivery.clone(),
                control: foundation.control.clone(),
                store: opened.store.clone(),
                queue: opened.queue.clone(),
                cpu: Mutex::default(),
                refused: Mutex::default(),
            }),
        }
    }
}

impl part::Part for Part {
    fn name(&self) -> Name {
        Name::Statistics
    }

    fn depends_on(&self) -> &'static [Name] {
        &[]
    }

    /// The last frame has what the last requests and deliveries counted.
    fn outlives(&self, _: Reason) -> &'static [Name] {
        &[Name::Delivery]
    }

    fn start<'a>(&'a mut self, start: Start<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (events, source) = (self.control.events.clone(), self.source.clone());
            let keep = |stop| events.keep_statistics(source, stop);
            start.tasks.start("statistics", keep);
            let events = self.control.events.clone();
            let report = |stop: CancellationToken| async move {
                events.report_refused_traffic(stop).await;
            };
            start.tasks.start("refused_traffic", report);
            let events = self.control.events.clone();
            let report = |stop: CancellationToken| async move {
                events.report_upstream_health(stop).await;
            };
            start.tasks.start("upstream_health", report);
            Ok(())
        })
    }
}
