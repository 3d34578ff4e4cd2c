//! What this node says of itself in the list of nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use culvert_base::BoxFuture;
use culvert_control::{Control, EventLogFacts, NodeFacts, StoreFacts};
use culvert_delivery::Delivery;
use culvert_edge::Edge;
use culvert_store::{Queue, Store};
use culvert_tunnel::nodes::Nodes;

use crate::server::foundation::Foundation;
use crate::server::listeners::{Addresses, Listener};
use crate::server::opened::Opened;
use crate::server::part::{self, Name, Reason, Start};

/// What the note is made of.
#[derive(Clone)]
pub(super) struct Part {
    control: Arc<Control>,
    delivery: Arc<Delivery>,
    nodes: Option<Arc<Nodes>>,
    edge: Option<Edge>,
    store: Store,
    queue: Queue,
    uses_nats: bool,
    /// What does not change, without the addresses.
    fixed: NodeFacts,
}

impl Part {
    pub(super) fn new(foundation: &Foundation) -> Self {
        let opened = &foundation.opened;
        let uses_nats = matches!(opened.given.nats(), Ok(Some(_)));
        Self {
            control: foundation.control.clone(),
            delivery: foundation.delivery.clone(),
            nodes: foundation.membership.nodes.clone(),
            edge: foundation.edge.clone(),
            store: opened.store.clone(),
            queue: opened.queue.clone(),
            uses_nats,
            fixed: fixed(opened, uses_nats),
        }
    }

    fn facts(&self) -> NodeFacts {
        let number = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let delay = self.store.write_delay().max(self.queue.write_delay());
        NodeFacts {
            node_connections: self
                .nodes
                .as_ref()
                .map_or(0, |nodes| number(nodes.connections())),
            agent_sessions: number(self.control.agents.agent_sessions()),
            overload_level: self
                .edge
                .as_ref()
                .map_or(0, |edge| edge.meters().overload_level.get()),
            store: StoreFacts {
                write_ms: delay.as_secs_f64() * 1_000.0,
                is_read_only: self.store.is_read_only(),
                ..self.fixed.store.clone()
            },
            event_log: EventLogFacts {
                is_up: !self.uses_nats || self.delivery.meters().log_up.get() > 0,
                ..self.fixed.event_log.clone()
            },
            ..self.fixed.clone()
        }
    }
}

impl part::Part for Part {
    fn name(&self) -> Name {
        Name::NodeNote
    }

    fn depends_on(&self) -> &'static [Name] {
        &[Name::Metrics]
    }

    /// It names their addresses, and other nodes see this one until it has stopped.
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
            self.fixed.addresses = shown(start.addresses);
            let described = self.clone();
            let control = self.control.clone();
            let keep = |stop| control.keep_node_note(move || described.facts(), stop);
            start.tasks.start("node_note", keep);
            Ok(())
        })
    }
}

fn fixed(opened: &Opened, uses_nats: bool) -> NodeFacts {
    let settings = &opened.given;
    NodeFacts {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: opened.started_at,
        roles: settings.roles.iter().map(|role| role.name()).collect(),
        region: settings.region.clone(),
        addresses: BTreeMap::new(),
        node_connections: 0,
        agent_sessions: 0,
        overload_level: 0,
        store: StoreFacts {
            engine: match settings.database_url.is_empty() {
                true => "sqlite".to_owned(),
                false => "postgres".to_owned(),
            },
            write_ms: 0.0,
            is_read_only: false,
        },
        event_log: EventLogFacts {
            kind: match uses_nats {
                true => "nats".to_owned(),
                false => "embedded".to_owned(),
            },
            is_up: true,
        },
    }
}

/// The addresses of a node as the list of nodes has them.
fn shown(addresses: &Addresses) -> BTreeMap<String, String> {
    addresses
        .each()
        .filter(|(listener, _)| *listener != Listener::ApiTls)
        .map(|(listener, address)| (listener.name().to_owned(), address.to_string()))
        .collect()
}
