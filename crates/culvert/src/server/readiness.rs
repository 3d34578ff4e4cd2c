//! What `/readyz` reports.

use std::sync::Arc;

use anyhow::Result;
use culvert_api::Health;
use culvert_base::{BoxFuture, Fault};
use culvert_delivery::Delivery;
use culvert_edge::Edge;
use culvert_policy::IpDatabases;
use culvert_store::Store;

use super::tasks::Supervision;

/// Readiness: the store and the event log are usable, all long-lived tasks run, and the address data of traffic
/// policies is loaded.
#[derive(Debug)]
pub(super) struct Readiness {
    pub(super) store: Store,
    pub(super) delivery: Arc<Delivery>,
    pub(super) supervision: Supervision,
    pub(super) edge: Option<Edge>,
    pub(super) ip_data: IpDatabases,
}

impl Readiness {
    /// Whether all address data files are loaded, and no endpoint rejects traffic because one is missing.
    pub(super) fn ip_data(&self) -> Result<(), String> {
        let data = self.ip_data.now();
        let mut settings = data.failed().to_vec();
        if let Some(edge) = &self.edge {
            settings.extend(edge.missing_data().settings());
        }
        settings.sort_unstable();
        settings.dedup();
        match settings.as_slice() {
            [] => Ok(()),
            settings => Err(format!("not loaded: {}", settings.join(", "))),
        }
    }
}

impl Health for Readiness {
    fn ready(&self) -> BoxFuture<'_, Vec<(&'static str, Result<(), String>)>> {
        Box::pin(async move {
            let (store, log) = tokio::join!(self.store.usable(), self.delivery.event_log_usable());
            // The path is public, so the response names only the part. The log has the cause.
            let shown = |part: Result<(), Fault>| {
                part.map_err(|fault| {
                    tracing::warn!(cause = %fault.chain(), "readiness check failed");
                    "not usable".to_owned()
                })
            };
            let store = match self.store.is_read_only() {
                true => Err("read-only: the disk took no writes at startup".to_owned()),
                false => shown(store),
            };
            let mut parts = vec![
                ("store", store),
                ("event_log", shown(log)),
                ("ip_data", self.ip_data()),
            ];
            for ended in self.supervision.failed() {
                parts.push((ended.name, Err("ended".to_owned())));
            }
            parts
        })
    }
}
