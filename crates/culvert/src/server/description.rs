//! What this node says of itself in the list of nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use culvert_base::Timestamp;
use culvert_control::{Control, EventLogFacts, NodeFacts, StoreFacts};
use culvert_delivery::Delivery;
use culvert_tunnel::nodes::Nodes;

use super::Server;
use crate::config::Role;

impl Server {
    /// Describes this node for the list of nodes, until it stops.
    pub(super) fn describe(
        &mut self,
        control: Arc<Control>,
        delivery: Arc<Delivery>,
        nodes: Option<Arc<Nodes>>,
        started_at: Timestamp,
    ) {
        let addresses = [
            ("api", self.api_addr),
            ("http", self.http_addr()),
            ("https", self.https_addr()),
            ("kubernetes", self.kubernetes_addr()),
            ("agents", self.agents_addr),
            ("ssh", self.ssh_addr),
            ("nodes", self.nodes_addr),
            ("metrics", self.metrics_addr),
        ];
        let addresses: BTreeMap<String, String> = addresses
            .into_iter()
            .filter_map(|(name, address)| Some((name.to_owned(), address?.to_string())))
            .collect();
        let settings = &self.settings;
        let uses_nats = matches!(settings.nats(), Ok(Some(_)));
        let fixed = NodeFacts {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at,
            roles: settings.roles.iter().map(|role| role_name(*role)).collect(),
            region: settings.region.clone(),
            addresses,
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
        };
        let (store, queue) = (self.parts.store.clone(), self.parts.queue.clone());
        let edge = self.parts.edge.clone();
        let counted = Arc::clone(&control);
        let number = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let facts = move || NodeFacts {
            node_connections: nodes
                .as_ref()
                .map_or(0, |nodes| number(nodes.connections())),
            agent_sessions: number(counted.agent_sessions()),
            overload_level: edge
                .as_ref()
                .map_or(0, |edge| edge.meters().overload_level.get()),
            store: StoreFacts {
                write_ms: store.write_delay().max(queue.write_delay()).as_secs_f64() * 1_000.0,
                is_read_only: store.is_read_only(),
                ..fixed.store.clone()
            },
            event_log: EventLogFacts {
                is_up: !uses_nats || delivery.meters().log_up.get() > 0,
                ..fixed.event_log.clone()
            },
            ..fixed.clone()
        };
        let keep = |stop| control.keep_node_note(facts, stop);
        self.parts.statistics.start("node_note", keep);
    }
}

fn role_name(role: Role) -> String {
    match role {
        Role::Api => "api",
        Role::Edge => "edge",
        Role::Agents => "agents",
        Role::Delivery => "delivery",
    }
    .to_owned()
}
