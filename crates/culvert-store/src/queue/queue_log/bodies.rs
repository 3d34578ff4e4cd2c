//! Writes captured messages.

use culvert_base::Timestamp;

use super::append::length;
use super::{QueueLog, written};
use crate::commit::writer::Outcome;
use crate::database::dialect::{Arg, Connection};
use crate::database::statements::events;
use crate::queue::batch::checksum;

/// The captured messages of an event, to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTrafficBody {
    /// `ev_…`.
    pub event: String,
    /// The time of the event.
    pub happened_at: Timestamp,
    /// Opaque to the queue.
    pub body: Vec<u8>,
}

pub(super) async fn keep(
    connection: &mut Connection,
    bodies: &[NewTrafficBody],
) -> Result<Outcome<QueueLog>, sqlx::Error> {
    let mut n = 0;
    for one in bodies {
        let arguments = [
            Arg::Text(&one.event),
            Arg::Int(one.happened_at.unix_nanos()),
            Arg::Int(length(&one.body)),
            Arg::Int(checksum(&one.body)),
            Arg::Blob(&one.body),
        ];
        n += connection
            .run(events::KEEP_TRAFFIC_BODY, &arguments)
            .await?;
    }
    Ok(written(n))
}
