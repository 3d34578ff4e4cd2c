//! The listener through which other nodes reach the agents of this one.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use culvert_base::BoxFuture;
use culvert_tunnel::nodes::NodeIngress;

use crate::server::foundation::Foundation;
use crate::server::listeners::Listener;
use crate::server::part::{self, Name, Reason, Start};

/// Time limit for streams of other nodes to end, while new ones may still arrive.
const BROUGHT_DRAIN: Duration = Duration::from_secs(3);

pub(super) struct Part {
    /// `None` once it runs.
    ingress: Option<NodeIngress>,
    address: SocketAddr,
    drain: Duration,
}

impl Part {
    /// `None` if other nodes cannot reach agents of this one.
    pub(super) fn new(foundation: &mut Foundation) -> Option<Self> {
        let bindings = foundation.bindings.clone()?;
        let nodes = foundation.membership.nodes.clone()?;
        let address = foundation.membership.local_addr?;
        let listener = foundation.membership.listener.take()?;
        let control = foundation.control.agents.clone();
        let drain = foundation.opened.settings.shutdown.drain.0;
        Some(Self {
            ingress: Some(NodeIngress::new(listener, nodes, bindings, control)),
            address,
            drain: drain.min(BROUGHT_DRAIN),
        })
    }
}

impl part::Part for Part {
    fn name(&self) -> Name {
        Name::Nodes
    }

    fn depends_on(&self) -> &'static [Name] {
        &[Name::Control, Name::Agents]
    }

    /// The last requests of the edge may need agents, which may need minutes to reconnect elsewhere.
    fn outlives(&self, _: Reason) -> &'static [Name] {
        &[Name::Edge]
    }

    fn start<'a>(&'a mut self, start: Start<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            start.addresses.insert(Listener::Nodes, self.address);
            if let Some(ingress) = self.ingress.take() {
                let drain = self.drain;
                let run = |stop| ingress.run(stop, drain);
                start.tasks.start("node_listener", run);
            }
            Ok(())
        })
    }
}
