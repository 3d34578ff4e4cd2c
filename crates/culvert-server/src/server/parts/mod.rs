//! The parts, with one file for each: what it is started with, and how its tasks run.

mod agent_sessions;
mod agents;
mod api;
mod audit_tree;
mod certificates;
mod control;
mod delivery;
mod edge;
mod edge_copy;
mod metrics;
mod node_note;
mod nodes;
mod server_events;
mod statistics;
mod traces;

use anyhow::Result;

use super::foundation::Foundation;
use super::part::Part;

/// The parts that the roles of this process need, in the order of their start.
pub(super) fn list(foundation: &mut Foundation) -> Result<Vec<Box<dyn Part>>> {
    let server = agents::plane(foundation);
    let api = api::plane(foundation)?;
    let mut list: Vec<Box<dyn Part>> = vec![
        Box::new(delivery::Part::new(foundation)),
        Box::new(control::Part::new(foundation)),
    ];
    if let Some(tracing) = traces::Part::new(foundation)? {
        list.push(Box::new(tracing));
    }
    if let Some(edge) = edge::Part::new(foundation) {
        list.push(Box::new(edge));
    }
    if let Some(copy) = edge_copy::Part::new(foundation) {
        list.push(Box::new(copy));
    }
    if let Some(server) = &server {
        list.push(Box::new(agent_sessions::Part::new(foundation)));
        list.push(Box::new(agents::Part::new(foundation, server)));
    }
    if let Some(nodes) = nodes::Part::new(foundation) {
        list.push(Box::new(nodes));
    }
    list.push(Box::new(certificates::Part::new(foundation)));
    if let Some(api) = &api {
        list.push(Box::new(api::Part::new(foundation, api)?));
    }
    list.push(Box::new(audit_tree::Part::new(foundation)));
    list.push(Box::new(statistics::Part::new(foundation)));
    list.push(Box::new(metrics::Part::new(foundation, server, api)));
    list.push(Box::new(node_note::Part::new(foundation)));
    list.push(Box::new(server_events::Part::new(foundation)));
    Ok(list)
}
