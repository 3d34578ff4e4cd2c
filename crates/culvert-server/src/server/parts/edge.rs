//! The edge: traffic.

use anyhow::Result;
use culvert_base::BoxFuture;
use culvert_edge::Edge;

use crate::server::foundation::Foundation;
use crate::server::listeners::Listener;
use crate::server::part::{self, Name, Start};

pub(super) struct Part {
    edge: Edge,
}

impl Part {
    pub(super) fn new(foundation: &Foundation) -> Option<Self> {
        let edge = foundation.edge.clone()?;
        Some(Self { edge })
    }
}

impl part::Part for Part {
    fn name(&self) -> Name {
        Name::Edge
    }

    fn depends_on(&self) -> &'static [Name] {
        &[Name::Delivery, Name::Control, Name::Tracing]
    }

    fn start<'a>(&'a mut self, start: Start<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let edge = &self.edge;
            for (listener, address) in [
                (Listener::Http, edge.http_addr()),
                (Listener::Https, edge.https_addr()),
                (Listener::Kubernetes, edge.kubernetes_addr()),
            ] {
                if let Some(address) = address {
                    start.addresses.insert(listener, address);
                }
            }
            let edge = edge.clone();
            start.tasks.start("edge", |stop| edge.run(stop));
            Ok(())
        })
    }
}
