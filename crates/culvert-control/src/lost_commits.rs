//! The event of commits that the database lost, as in a fail-over to a standby that did not have them.

use culvert_base::{Fault, Timestamp};
use culvert_events::catalogue::AuditKind;
use culvert_events::{EventId, encode};
use culvert_store::{Changes, LostCommits};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;

use crate::bootstrap::FIRST;
use crate::control::Control;
use crate::event_kinds::COMMITS_LOST;
use crate::tenant::Account;

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
    let schema = SchemaSettings::draft2020_12()
        .for_serialize()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator()
        .into_root_schema_for::<Object<'static>>()
        .to_value();
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
        self.edge.is_some() && self.published.borrow().epoch < self.store.epoch()
    }

    /// Emits the event of a loss, unless `reported` is its epoch or a later one.
    pub(crate) async fn report_lost_commits(&self, reported: &mut u64) -> Result<(), Fault> {
        let Some(loss) = self.store.lost_commits() else {
            return Ok(());
        };
        if loss.found.epoch <= *reported {
            return Ok(());
        }
        let account = self.store.find(Account::KIND, FIRST.0, FIRST.1).await?;
        if let Some(account) = account {
            let event = self.event_of_loss(&account.head.id, &loss)?;
            let written = self.store.commit(Changes::tell(event)).await;
            written.map_err(|error| Fault::new("recording lost commits", error))?;
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
            node: self.statistics.node(),
            noticed_at: loss.noticed_at,
            known_revision: loss.known.number,
            found_revision: loss.found.number,
        };
        let at = self.clock.now();
        let id = EventId::new(at, self.entropy.bytes());
        encode::audit(COMMITS_LOST, at, &id, account, None, &object)
    }
}
