//! What `/readyz` reports while the edge serves from a copy.

use std::sync::Arc;

use culvert_api::{Health, Serves};
use culvert_base::{BoxFuture, Clock};
use culvert_edge::Edge;
use culvert_installation::edge_copy::CopyFacts;

/// The edge is ready, all else is not.
#[derive(Debug)]
pub(super) struct CopyHealth {
    pub(super) facts: CopyFacts,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) edge: Edge,
}

impl Health for CopyHealth {
    fn ready(&self, serves: Serves) -> BoxFuture<'_, Vec<(&'static str, Result<(), String>)>> {
        Box::pin(async move {
            let age = self.facts.age(self.clock.now()).as_secs();
            let away =
                || format!("away since the start; the edge serves from a copy of {age} s ago");
            let ip_data = match self.edge.missing_data().settings().as_slice() {
                [] => Ok(()),
                settings => Err(format!("not loaded: {}", settings.join(", "))),
            };
            match serves {
                Serves::All => vec![
                    ("store", Err(away())),
                    ("edge", Ok(())),
                    ("ip_data", ip_data),
                ],
                Serves::Edge => vec![("edge", Ok(())), ("ip_data", ip_data)],
                Serves::Agents => vec![("agents", Err("not started: no database yet".to_owned()))],
            }
        })
    }
}
