//! The event of commits that the database lost, as in a fail-over to a standby that did not have them.

use culvert_base::{Fault, Timestamp};
use culvert_event_config::event_kinds::COMMITS_LOST;
use culvert_events::catalogue::AuditKind;
use culvert_events::{Audit, EventId};
use culvert_resources::access::tenant::Account;
use culvert_resources::audit;
use culvert_store::LostCommits;
use schemars::JsonSchema;
use serde::Serialize;

use crate::control::Control;

/// The object of the event.
#[derive(Serialize, JsonSchema)]
struct Object<'a> {
    /// The node that noticed the loss. Each node that knew of a lost commit reports it.
    node: &'a str,
    /// When the node noticed it.
    #[schemars(with = "String", extend("format" = "date-time"))]
    noticed_at: Timestamp,
    /// The latest revision that the node knew before the loss.
    known_revision: i64,
    /// The latest revision that it found instead. It may be above the other one, if there were new commits.
    found_revision: i64,
}

/// The kind of event.
pub(crate) fn kinds() -> [AuditKind; 1] {
    let schema = audit::schema_of::<Object<'static>>();
    [AuditKind {
        name: COMMITS_LOST.to_owned(),
        doc: "The database lost commits that a node knew of, as in a fail-over to a standby without them. The node \
              read everything again."
            .to_owned(),
        schema,
    }]
}

impl Control {
    /// Whether the edge of this process still runs a configuration from before commits were lost.
    pub fn is_reading_again(&self) -> bool {
        let applied = self.kernel.applied.revision();
        applied.is_some_and(|applied| applied.epoch < self.kernel.store.epoch())
    }

    /// Emits the event of a loss, unless `reported` is its epoch or a later one.
    pub(crate) async fn report_lost_commits(&self, reported: &mut u64) -> Result<(), Fault> {
        let Some(loss) = self.kernel.store.lost_commits() else {
            return Ok(());
        };
        if loss.found.epoch <= *reported {
            return Ok(());
        }
        let account = self
            .kernel
            .store
            .find(Account::KIND, Account::FIRST.0, Account::FIRST.1)
            .await?;
        if let Some(account) = account {
            let account = &account.head.id;
            let event = self.event_of_loss(account, &loss)?;
            let node = self.events.statistics.node();
            let log = self.server_log();
            log.report_loss(account, node, &loss, event).await?;
        }
        *reported = loss.found.epoch;
        Ok(())
    }

    fn event_of_loss(
        &self,
        account: &str,
        loss: &LostCommits,
    ) -> Result<culvert_base::Event, Fault> {
        let object = Object {
            node: self.events.statistics.node(),
            noticed_at: loss.noticed_at,
            known_revision: loss.known.number,
            found_revision: loss.found.number,
        };
        let at = self.kernel.clock.now();
        let id = EventId::new(at, self.kernel.entropy.bytes());
        Audit::by_server(COMMITS_LOST, at, &id, account).about(&object)
    }
}
