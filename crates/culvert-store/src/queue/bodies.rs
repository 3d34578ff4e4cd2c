//! Messages captured beside retained traffic events, one row for each event. The oldest are removed first.
//!
//! Not here: the content of the rows, and who may read it.

use std::time::Duration;

use culvert_base::{Fault, Timestamp};

use super::{Queue, checksum};
use crate::database::dialect::{Arg, While};
use crate::database::statements::events;
use crate::queue::queue_log::QueueCommand;
use crate::queue::queue_log::bodies::NewTrafficBody;

/// Rows read in one step.
const STEP: i64 = 256;

impl Queue {
    /// Writes captured messages. Durable on return. Existing messages of an event are not replaced.
    pub async fn keep_bodies(&self, bodies: Vec<NewTrafficBody>) -> Result<(), Fault> {
        self.count(
            "keeping captured messages",
            QueueCommand::KeepBodies { bodies },
        )
        .await
        .map(drop)
    }

    /// The captured messages of an event; `None` if there are none, or they are damaged.
    pub async fn traffic_body(&self, event: &str) -> Result<Option<Vec<u8>>, Fault> {
        let doing = "reading captured messages";
        let row = self
            .pool()
            .row(doing, events::TRAFFIC_BODY, &[Arg::Text(event)])
            .await?;
        let Some(row) = row else { return Ok(None) };
        let crc: i64 = row.get(0).during(doing)?;
        let body: Vec<u8> = row.get(1).during(doing)?;
        Ok((crc == checksum(&body)).then_some(body))
    }

    /// Bytes of all captured messages.
    pub async fn traffic_body_bytes(&self) -> Result<u64, Fault> {
        let doing = "reading the size of captured messages";
        let row = self
            .pool()
            .row(doing, events::TRAFFIC_BODY_BYTES, &[])
            .await?;
        let bytes: i64 = row.map_or(Ok(0), |row| row.get(0)).during(doing)?;
        Ok(u64::try_from(bytes).unwrap_or(0))
    }

    /// Removes the oldest captured messages: those of events before `cutoff`, and further ones until `bytes_max` is
    /// met. Returns how many.
    pub async fn prune_bodies(&self, cutoff: Timestamp, bytes_max: u64) -> Result<u64, Fault> {
        let doing = "looking for captured messages to prune";
        let mut excess = self.traffic_body_bytes().await?.saturating_sub(bytes_max);
        let mut n_pruned = 0;
        loop {
            let rows = self
                .pool()
                .rows(doing, events::TRAFFIC_BODY_OLDEST, &[Arg::Int(STEP)])
                .await?;
            let mut up_to: Option<i64> = None;
            for row in &rows {
                let (id, happened_at, bytes): (i64, i64, i64) = (
                    row.get(0).during(doing)?,
                    row.get(1).during(doing)?,
                    row.get(2).during(doing)?,
                );
                if excess == 0 && happened_at >= cutoff.unix_nanos() {
                    break;
                }
                excess = excess.saturating_sub(u64::try_from(bytes).unwrap_or(0));
                up_to = Some(id);
            }
            let Some(up_to) = up_to else {
                return Ok(n_pruned);
            };
            n_pruned += self
                .count(
                    "pruning captured messages",
                    QueueCommand::PruneBodies { up_to },
                )
                .await?;
            // Lets other writes proceed.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
