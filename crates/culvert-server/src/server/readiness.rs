//! What `/readyz` reports.

use std::sync::Arc;

use anyhow::Result;
use culvert_api::{Health, Serves};
use culvert_audit_tree::AuditTreeKeeper;
use culvert_audit_tree::witnesses::WitnessClient;
use culvert_base::{BoxFuture, Fault};
use culvert_control::{Control, ServerWatch};
use culvert_delivery::Delivery;
use culvert_edge::Edge;
use culvert_policy::IpDatabases;
use culvert_store::Store;

use super::tasks::Supervision;

/// Readiness: the store and the event log are usable, all long-lived tasks run, the address data of traffic policies is
/// loaded, and the edge has a configuration that the database did not lose.
#[derive(Debug)]
pub(super) struct Readiness {
    pub(super) control: Arc<Control>,
    /// Whether this node accepts agents.
    pub(super) has_agents: bool,
    pub(super) store: Store,
    pub(super) delivery: Arc<Delivery>,
    pub(super) supervision: Supervision,
    pub(super) edge: Option<Edge>,
    pub(super) ip_data: IpDatabases,
    pub(super) audit_tree: Arc<AuditTreeKeeper>,
    pub(super) watch: Arc<ServerWatch>,
    pub(super) witnesses: Vec<Arc<WitnessClient>>,
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

impl Readiness {
    /// The parts without which traffic, or agents, are not served. The database is not one of them.
    fn of_role(&self, has_role: bool, role: &'static str) -> Vec<(&'static str, Part)> {
        let own = match has_role {
            true if role == "edge" => self.configuration(),
            true if role == "agents" && self.control.agents.is_cut_off() => {
                Err("cut off: this node lost its place among the nodes".to_owned())
            }
            true => Ok(()),
            false => Err("not a role of this node".to_owned()),
        };
        let mut parts = vec![(role, own)];
        if role == "edge" {
            parts.push(("ip_data", self.ip_data()));
        }
        parts.extend(self.ended());
        parts
    }

    /// Whether the edge may serve from its configuration.
    fn configuration(&self) -> Part {
        match self.edge.as_ref().and_then(Edge::outdated_for) {
            None => Ok(()),
            Some(age) => Err(format!(
                "outdated: the configuration is {} s old, more than `edge.copy_age_max`",
                age.as_secs()
            )),
        }
    }

    fn ended(&self) -> impl Iterator<Item = (&'static str, Part)> {
        let failed = self.supervision.failed().into_iter();
        failed.map(|ended| (ended.name, Err("ended".to_owned())))
    }

    /// The store, and the loss of commits that the edge has not followed yet.
    async fn store(&self) -> (Part, Part) {
        let store = self.store.usable().await;
        let store = store.map_err(|fault| {
            tracing::warn!(cause = %fault.chain(), "readiness check failed");
            // The path is public, so the response has no details. The log has the cause.
            let trouble = self.store.trouble();
            trouble.unwrap_or_else(|| "not usable".to_owned())
        });
        let history = match self.control.is_reading_again() {
            true => Err("the database lost commits; reading everything again".to_owned()),
            false => Ok(()),
        };
        (store, history)
    }
}

/// Whether a part is usable, and why not.
type Part = Result<(), String>;

impl Health for Readiness {
    fn notices(&self) -> Vec<(&'static str, String)> {
        let mut notices = Vec::new();
        if self.delivery.files_set_aside() > 0 {
            let what = "a start set a damaged file of events aside; what waited in it is lost";
            notices.push(("events", what.to_owned()));
        }
        // Anyone may read it. The log has the cause.
        if let Some((part, notice)) = self.audit_tree.notice() {
            notices.push((part, notice.to_owned()));
        }
        if let Some(notice) = self.watch.traffic_notice() {
            notices.push(("traffic_log", notice.to_owned()));
        }
        let of_witnesses = self.witnesses.iter().filter_map(|it| it.notice());
        // A refusal is said rather than an outage.
        if let Some(notice) = of_witnesses.max() {
            notices.push(("audit_witness", notice.to_owned()));
        }
        notices
    }

    fn ready(&self, serves: Serves) -> BoxFuture<'_, Vec<(&'static str, Part)>> {
        Box::pin(async move {
            match serves {
                Serves::All => {}
                Serves::Edge => return self.of_role(self.edge.is_some(), "edge"),
                Serves::Agents => return self.of_role(self.has_agents, "agents"),
            }
            let ((store, history), log) =
                tokio::join!(self.store(), self.delivery.event_log_usable());
            // The path is public, so the response names only the part. The log has the cause.
            let shown = |part: Result<(), Fault>| {
                part.map_err(|fault| {
                    tracing::warn!(cause = %fault.chain(), "readiness check failed");
                    "not usable".to_owned()
                })
            };
            let mut parts = vec![
                ("store", store),
                ("history", history),
                ("event_log", shown(log)),
                ("ip_data", self.ip_data()),
            ];
            if self.edge.is_some() {
                parts.push(("edge", self.configuration()));
            }
            parts.extend(self.ended());
            parts
        })
    }
}
