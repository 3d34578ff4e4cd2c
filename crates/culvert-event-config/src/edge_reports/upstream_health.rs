//! The events of upstreams that became healthy or unhealthy.
//!
//! Each node judges by its own requests and checks, and reports what it sees. An upstream that changes often has one event a
//! minute, with its state then.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use culvert_base::sync::lock;
use culvert_base::{Event, Fault, Timestamp};
use culvert_events::catalogue::AuditKind;
use culvert_events::{Audit, EventId};
use culvert_resources::audit;
use culvert_store::Changes;
use schemars::JsonSchema;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::upstream_reports::{Change, Key, Reports};
use crate::EventConfig;
use crate::event_kinds::{UPSTREAM_HEALTHY, UPSTREAM_UNHEALTHY};

/// How often it compares the upstreams with what it reported.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The object of the events.
#[derive(Debug, Serialize, JsonSchema)]
struct Object<'a> {
    /// ID of the endpoint.
    endpoint_id: &'a str,
    /// URL of the upstream.
    upstream: &'a str,
    /// The node that sees it so.
    node: &'a str,
    /// Why it is unhealthy: the last failure of requests or of a health check. Empty if it is healthy; `removed` if it is not
    /// in the list any more.
    reason: &'a str,
    /// When it became so.
    #[schemars(with = "String", extend("format" = "date-time"))]
    changed_at: Timestamp,
}

/// The kinds of events.
pub fn kinds() -> [AuditKind; 2] {
    let schema = audit::schema_of::<Object<'static>>();
    let kind = |name: &str, doc: &str| AuditKind {
        name: name.to_owned(),
        doc: doc.to_owned(),
        schema: schema.clone(),
    };
    [
        kind(
            UPSTREAM_HEALTHY,
            "An upstream of an endpoint that was unhealthy responds again, passes its health checks, or is not in the list \
             any more. From each node that sees it.",
        ),
        kind(
            UPSTREAM_UNHEALTHY,
            "An upstream of an endpoint with several was ejected after failures in a row, or fails its health checks. From each \
             node that sees it. An upstream has one event a minute at most; an account has 100. A node that starts does not know the last state.",
        ),
    ]
}

impl EventConfig {
    fn upstream_reports(&self) -> MutexGuard<'_, Reports> {
        lock(&self.upstream_reports.0)
    }

    /// Reports the health of upstreams until cancelled.
    pub async fn report_upstream_health(&self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            if let Err(fault) = self.report_upstreams().await {
                tracing::warn!(cause = %fault.chain(), "reporting the health of upstreams failed; retrying");
            }
        }
    }

    /// Commits the events that are due.
    ///
    /// # Errors
    /// If the store fails. What was not written is tried again.
    pub async fn report_upstreams(&self) -> Result<(), Fault> {
        let Some(edge) = &self.edge else {
            return Ok(());
        };
        // An edge that stops has no lists any more.
        let Some(unhealthy) = edge.unhealthy_upstreams() else {
            return Ok(());
        };
        let now = Instant::now();
        let is_listed = |(endpoint, url): &Key| {
            let statuses = edge.upstream_statuses(endpoint).unwrap_or_default();
            statuses.iter().any(|status| status.url == *url)
        };
        let due = {
            let mut reports = self.upstream_reports();
            reports.note(&[], now);
            reports.due(unhealthy, is_listed, now)
        };
        if due.is_empty() {
            return Ok(());
        }
        let mut changes = Changes::default();
        for change in &due {
            changes = changes.and(Changes::event(self.event_of_upstream(change)?));
        }
        let written = self.kernel.store.commit(changes).await;
        written.map_err(|error| Fault::new("recording the health of upstreams", error))?;
        self.upstream_reports().note(&due, now);
        Ok(())
    }

    fn event_of_upstream(&self, change: &Change) -> Result<Event, Fault> {
        let kind = match change.is_healthy {
            true => UPSTREAM_HEALTHY,
            false => UPSTREAM_UNHEALTHY,
        };
        let at = self.kernel.clock.now();
        let object = Object {
            endpoint_id: &change.key.0,
            upstream: &change.key.1,
            node: self.statistics.node(),
            reason: &change.reason,
            changed_at: at.minus(change.lasts),
        };
        let id = EventId::new(at, self.kernel.entropy.bytes());
        Audit::by_server(kind, at, &id, &change.account).about(&object)
    }
}
