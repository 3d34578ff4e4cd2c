//! The event of audit events that are deleted for their age. It is written before they are deleted, so that a deletion
//! has its event although the server may be killed.

use std::time::Duration;

use culvert_base::{BoxFuture, Fault};
use culvert_delivery::PruningNotice;
use culvert_resources::stored::Format;
use culvert_store::AuditEvent;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ServerLog;
use super::mark::MarkKind;
use super::names::EVENT_LOG_PRUNED;

const PRUNING: MarkKind = MarkKind {
    kind: "pruned_log",
    prefix: "prune",
};
const AUDIT: &str = "audit";
/// Shortest time between two events, so that the deletion of these events does not cause many more.
const APART: Duration = Duration::from_secs(3_600);
/// A deletion of this number of events is reported earlier.
const MANY: i64 = 16_384;

/// The object of the event.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Pruned {
    /// The first position that is deleted.
    first: i64,
    /// The last position that is deleted.
    last: i64,
    /// How many events that are.
    count: i64,
    /// Why: `retention`.
    reason: &'static str,
    /// The hash of the event at `last` in the hash chain, which the first retained event continues.
    last_hash: Option<String>,
    /// The first of the events before `first` that are missing although no event announced it; null if there are none.
    unannounced_from: Option<i64>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Announced {
    format: Format<1>,
    /// The last position that may be deleted.
    up_to: i64,
}

impl PruningNotice for ServerLog {
    fn announce(&self, first: i64, last: i64) -> BoxFuture<'_, Result<i64, Fault>> {
        Box::pin(async move {
            let known = self.mark::<Announced>(PRUNING, AUDIT).await?;
            let announced = known.as_ref().and_then(|mark| mark.state.as_ref());
            let up_to = announced.map_or(0, |announced| announced.up_to);
            let n_new = last.saturating_sub(up_to.max(first - 1));
            let is_soon = known
                .as_ref()
                .is_some_and(|mark| self.clock.now().since(mark.document.head.updated_at) < APART);
            let Some(account) = self.account().await? else {
                return Ok(0);
            };
            if up_to >= first || n_new <= 0 || is_soon && n_new < MANY {
                return Ok(up_to);
            }
            let log = self.store.audit_log();
            let unannounced_from = log.unannounced_from().await?;
            if let Some(from) = unannounced_from {
                tracing::error!(
                    from,
                    to = first.saturating_sub(1),
                    "events of the audit log are missing, and no event announced it: they were removed from the database directly"
                );
            }
            let object = Pruned {
                first,
                last,
                count: n_new,
                reason: "retention",
                last_hash: log.hash_at(last).await?,
                unannounced_from,
            };
            let event = self.event(&account, EVENT_LOG_PRUNED, None, &object)?;
            let state = Announced {
                format: Format,
                up_to: last,
            };
            let (known, event) = (known.map(|mark| mark.document), AuditEvent::Emit(event));
            let changes = self.marking(PRUNING, AUDIT, known, &state, event)?;
            let is_written = self
                .commit_once("recording the end of events", changes)
                .await?;
            Ok(if is_written { last } else { up_to })
        })
    }
}
