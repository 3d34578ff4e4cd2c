//! The loss of events that waited for delivery, until an event tells of it.

use culvert_base::{Fault, Timestamp};
use culvert_store::Store;
use schemars::JsonSchema;
use serde::Serialize;

/// Name of the stored value with the ID of the loss with a missing file that has no event yet.
pub const MISSING: &str = "events_missing";

/// Why events are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// The file was damaged and is set aside.
    FileDamaged,
    /// The file was missing.
    FileMissing,
    /// The node served traffic from a copy of its configuration while the database was away at its start. They waited
    /// nowhere.
    DatabaseAway,
    /// The queue of the destination was full.
    QueueFull,
    /// The queue of all destinations was full.
    DiskFull,
    /// The queue of events to record of the node was full.
    OfferFull,
    /// The node stopped while the queue could not be written.
    Stopped,
    /// A part of the node failed while it had them in memory.
    InternalError,
    /// The event log lost them: its stream was deleted, reached a limit, or lost its disks.
    EventLogLost,
}

impl Loss {
    /// The reason that metrics have this name for. `None` for the consequences of a change that has its own event, and for
    /// losses that are reported otherwise.
    pub fn of_metric(name: &str) -> Option<Self> {
        Some(match name {
            "queue_full" => Self::QueueFull,
            "disk_full" => Self::DiskFull,
            "offer_full" => Self::OfferFull,
            "stopped" => Self::Stopped,
            "internal_error" => Self::InternalError,
            "event_log_lost" => Self::EventLogLost,
            _ => return None,
        })
    }
}

/// Events that waited in a file and are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostEvents {
    /// Identifies the loss: each causes one event.
    pub id: String,
    /// Why.
    pub reason: Loss,
    /// The name of the file, without its directory; empty if they waited in none.
    pub file: String,
    /// How many deliveries waited, if that can be read.
    pub deliveries: Option<u64>,
}

impl LostEvents {
    /// The loss with a file that was set aside, whose name is unique.
    pub fn with_damaged(file: String, deliveries: Option<u64>) -> Self {
        Self {
            id: file.clone(),
            reason: Loss::FileDamaged,
            file,
            deliveries,
        }
    }

    /// The loss with a missing file that has no event yet: of this file, or of one that an earlier start missed.
    /// Once the file has begun again, only the value stored here tells of the loss.
    ///
    /// # Errors
    /// The store fails.
    pub async fn with_missing(
        store: &Store,
        file: Option<&str>,
        now: Timestamp,
    ) -> Result<Option<Self>, Fault> {
        let kept = store.meta_get(MISSING).await?.unwrap_or_default();
        let id = match file {
            Some(file) if kept.is_empty() => {
                let id = format!("{file}.missing-{}", now.unix_millis());
                store.meta_set(MISSING, &id).await?;
                id
            }
            _ => kept,
        };
        let Some((file, _)) = id.rsplit_once(".missing-") else {
            return Ok(None);
        };
        Ok(Some(Self {
            file: file.to_owned(),
            reason: Loss::FileMissing,
            deliveries: None,
            id,
        }))
    }
}
