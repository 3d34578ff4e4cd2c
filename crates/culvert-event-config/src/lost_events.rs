//! The event of events that waited for delivery and are lost with the file that they waited in.

use culvert_base::sync::lock;
use culvert_base::{Fault, Timestamp};
use culvert_events::catalogue::AuditKind;
use culvert_events::{Audit, EventId};
use culvert_resources::access::tenant::Account;
use culvert_resources::audit;
use culvert_resources::stored::lost_events::{Loss, LostEvents, MISSING};
use culvert_store::Changes;
use schemars::JsonSchema;
use serde::Serialize;

use crate::EventConfig;
use crate::event_kinds::EVENTS_DROPPED;

/// Name of the stored value with the IDs of losses that have an event, one in a line.
const TOLD: &str = "events_set_aside_told";
/// IDs in it, the latest ones.
const TOLD_MAX: usize = 100;
/// Events of traffic that a running node dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedEvents {
    /// The destination; empty if they were dropped before it was known.
    pub destination: String,
    /// Why.
    pub reason: Loss,
    /// How many since the last event.
    pub count: u64,
    /// When it was noticed first since the last event.
    pub first_at: Timestamp,
    /// When it was noticed last.
    pub last_at: Timestamp,
}

/// The object of the event.
#[derive(Serialize, JsonSchema)]
struct Object<'a> {
    /// The node that noticed the loss.
    node: &'a str,
    /// When the node noticed it.
    #[schemars(with = "String", extend("format" = "date-time"))]
    noticed_at: Timestamp,
    /// Why they are lost.
    reason: Loss,
    /// The file that they waited in, or the name that it has since it was set aside; empty if they waited in none.
    file: &'a str,
    /// How many deliveries waited, or how many events of traffic were dropped; null if that cannot be read.
    deliveries: Option<u64>,
    /// `traffic`; null where events of both classes waited.
    class: Option<&'static str>,
    /// The destination; null if the events were for several, or were dropped before it was known.
    destination_id: Option<&'a str>,
    /// When the node dropped the first of them; null if it dropped none itself.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    first_at: Option<Timestamp>,
    /// When the node dropped the last of them.
    #[schemars(with = "Option<String>", extend("format" = "date-time"))]
    last_at: Option<Timestamp>,
}

/// The kind of event.
pub fn kinds() -> [AuditKind; 1] {
    let schema = audit::schema_of::<Object<'static>>();
    [AuditKind {
        name: EVENTS_DROPPED.to_owned(),
        doc: "Events that waited for delivery are lost, with retained traffic events, because the file that they \
              were in was damaged or missing: one event in each account, because the file may have had those of any; or events of traffic, because the database was away at the start of a \
              node, or a queue was full: one event when it begins, and one every ten minutes while it goes on. The \
              audit log is elsewhere and is whole."
            .to_owned(),
        schema,
    }]
}

impl EventConfig {
    /// Notes losses, the oldest first: counts them, and emits an event for each when it can. Those with an event of an
    /// earlier start are skipped.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn note_lost_events(&self, lost: Vec<LostEvents>) -> Result<(), Fault> {
        let told = self.kernel.store.meta_get(TOLD).await?.unwrap_or_default();
        let is_told = |one: &LostEvents| told.lines().any(|id| id == one.id);
        let untold = lost.into_iter().filter(|one| !is_told(one));
        for one in untold {
            self.delivery
                .count_lost_with_file(one.deliveries.unwrap_or(0));
            lock(&self.untold_losses).push(one);
        }
        Ok(())
    }

    /// Emits an event in each account for each loss that was noted. What tells that there is an event is written with it.
    pub async fn report_lost_events(&self) -> Result<(), Fault> {
        loop {
            let Some(loss) = lock(&self.untold_losses).first().cloned() else {
                return Ok(());
            };
            // Whose events they were cannot be read from a damaged file.
            let accounts = self.kernel.store.all(Account::KIND).await?;
            let told = self.kernel.store.meta_get(TOLD).await?.unwrap_or_default();
            let mut ids: Vec<&str> = told.lines().collect();
            // An earlier attempt may have succeeded although it seemed to fail.
            if !ids.contains(&&*loss.id) {
                ids.push(&loss.id);
                let surplus = ids.len().saturating_sub(TOLD_MAX);
                let mut changes = Changes::meta(TOLD, ids.split_off(surplus).join("\n"));
                if loss.reason == Loss::FileMissing {
                    changes = changes.and(Changes::meta(MISSING, String::new()));
                }
                // Without an account there are no subscriptions yet.
                for account in &accounts {
                    let event = self.event_of_lost_events(&account.head.id, &loss)?;
                    changes = changes.and(Changes::event(event));
                }
                let written = self.kernel.store.commit(changes).await;
                written.map_err(|error| Fault::new("recording lost events", error))?;
            }
            lock(&self.untold_losses).remove(0);
        }
    }

    /// Emits the event of events that this node dropped.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn report_dropped(
        &self,
        account: &str,
        dropped: &DroppedEvents,
    ) -> Result<(), Fault> {
        let id = dropped.destination.as_str();
        let object = Object {
            node: self.statistics.node(),
            noticed_at: dropped.last_at,
            reason: dropped.reason,
            file: "",
            deliveries: Some(dropped.count),
            class: Some("traffic"),
            destination_id: (!id.is_empty()).then_some(id),
            first_at: Some(dropped.first_at),
            last_at: Some(dropped.last_at),
        };
        let event = self.event_of_loss(account, &object)?;
        let written = self.kernel.store.commit(Changes::event(event)).await;
        written.map_err(|error| Fault::new("recording dropped events", error))?;
        Ok(())
    }

    fn event_of_lost_events(
        &self,
        account: &str,
        loss: &LostEvents,
    ) -> Result<culvert_base::Event, Fault> {
        let is_traffic = loss.reason == Loss::DatabaseAway;
        let object = Object {
            node: self.statistics.node(),
            noticed_at: self.kernel.clock.now(),
            reason: loss.reason,
            file: &loss.file,
            deliveries: loss.deliveries,
            class: is_traffic.then_some("traffic"),
            destination_id: None,
            first_at: None,
            last_at: None,
        };
        self.event_of_loss(account, &object)
    }

    fn event_of_loss(
        &self,
        account: &str,
        object: &Object<'_>,
    ) -> Result<culvert_base::Event, Fault> {
        let at = self.kernel.clock.now();
        let id = EventId::new(at, self.kernel.entropy.bytes());
        Audit::by_server(EVENTS_DROPPED, at, &id, account).about(object)
    }
}
