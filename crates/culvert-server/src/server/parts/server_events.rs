//! Events of the server itself: its start, its reloads, and what it sees of nodes, destinations, certificates and keys. And
//! the alerts that follow from rules.

use std::sync::Arc;

use anyhow::Result;
use culvert_base::BoxFuture;
use culvert_control::{AlertEvaluator, ServerWatch};

use crate::server::foundation::Foundation;
use crate::server::part::{self, Name, Reason, Start};

pub(super) struct Part {
    watch: Arc<ServerWatch>,
    alerts: Arc<AlertEvaluator>,
}

impl Part {
    pub(super) fn new(foundation: &Foundation) -> Self {
        Self {
            watch: foundation.watch.clone(),
            alerts: foundation.alerts.clone(),
        }
    }
}

impl part::Part for Part {
    fn name(&self) -> Name {
        Name::ServerEvents
    }

    /// The event of the start says that everything else runs.
    fn depends_on(&self) -> &'static [Name] {
        &[Name::NodeNote]
    }

    /// It reports what they dropped.
    fn outlives(&self, _: Reason) -> &'static [Name] {
        &[
            Name::Delivery,
            Name::Agents,
            Name::Nodes,
            Name::Edge,
            Name::Api,
        ]
    }

    fn start<'a>(&'a mut self, start: Start<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.watch.check(false).await;
            let run = |stop| self.watch.clone().run(stop);
            start.tasks.start("server_events", run);
            let evaluate = |stop| self.alerts.clone().run(stop);
            start.tasks.start("alerts", evaluate);
            Ok(())
        })
    }
}
