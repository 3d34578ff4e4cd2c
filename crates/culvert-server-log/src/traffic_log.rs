//! Records of the traffic log in the audit log: the root over the pieces of each hour, so that the tree of the audit log
//! vouches for them too (contract: audit 4).

use std::time::Duration;

use culvert_base::text::hex;
use culvert_base::{Fault, Timestamp};
use culvert_resources::stored::Format;
use culvert_store::{AuditEvent, HashedTraffic, Queue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ServerLog;
use super::mark::MarkKind;
use super::names::TRAFFIC_LOG_HASHED;

const HASHED: MarkKind = MarkKind {
    kind: "hashed_traffic",
    prefix: "hashed",
};
const TRAFFIC: &str = "traffic";
/// A record is made when the oldest piece without one has this age.
const EVERY: Duration = Duration::from_secs(3_600);
/// Number of pieces from which a record is not extended.
const PIECES_MAX: u64 = 16_384;

/// The object of the event.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TrafficHashed<'a> {
    /// The node that made the record.
    node: &'a str,
    /// Time of the first event.
    #[schemars(with = "String", extend("format" = "date-time"))]
    from: Timestamp,
    /// Time of the last event.
    #[schemars(with = "String", extend("format" = "date-time"))]
    to: Timestamp,
    /// Number of pieces of the traffic log, each of many events.
    count: u64,
    /// The root of the tree over the stored pieces (RFC 6962, section 2.1, with SHA-256), in hexadecimal digits.
    sha256: String,
    /// The first position of the pieces. It continues the record before.
    first: i64,
    /// The last position.
    last: i64,
    /// Whether the pieces of the record before are not there any more: the file of events was replaced or restored, or
    /// changed. Positions then begin at 1 again.
    is_restarted: bool,
}

/// The end of the latest record.
#[derive(Debug, Deserialize, Serialize)]
struct Recorded {
    format: Format<1>,
    last: i64,
    /// The hash of the last piece; empty if there is none at that position.
    hash: String,
}

impl ServerLog {
    /// Records the pieces of the traffic log, if the oldest without a record is an hour old.
    pub async fn record_traffic(
        &self,
        node: &str,
        queue: &Queue,
        now: Timestamp,
    ) -> Result<(), Fault> {
        loop {
            let known = self.mark::<Recorded>(HASHED, TRAFFIC).await?;
            let recorded = known.as_ref().and_then(|mark| mark.state.as_ref());
            let after = match recorded {
                Some(recorded) => continued(queue, recorded).await?,
                None => 0,
            };
            // So does a mark that cannot be read: the records before it are not continued.
            let is_unknown = known.is_some() && recorded.is_none();
            let is_restarted = is_unknown || recorded.is_some_and(|recorded| after < recorded.last);
            let begins_at = queue.traffic_begins_at(after).await?;
            if begins_at.is_none_or(|at| now.since(at) < EVERY) {
                return Ok(());
            }
            let settled = queue.settled_traffic().await?.last;
            let Some(hashed) = queue.hash_traffic(after, settled, PIECES_MAX).await? else {
                return Ok(());
            };
            let Some(account) = self.account().await? else {
                return Ok(());
            };
            if is_restarted {
                tracing::error!(
                    "the traffic log is not the one that the audit log has a record of: the file of events was replaced, restored or \
                     changed; `culvert audit verify --traffic` says so until it is accepted"
                );
            }
            let object = object(node, &hashed, is_restarted);
            let event = self.event(&account, TRAFFIC_LOG_HASHED, None, &object)?;
            let hash = queue.traffic_hash(hashed.last).await?;
            let state = Recorded {
                format: Format,
                last: hashed.last,
                hash: hash.map_or_else(String::new, |hash| hash.to_string()),
            };
            let (known, event) = (known.map(|mark| mark.document), AuditEvent::Emit(event));
            let changes = self.marking(HASHED, TRAFFIC, known, &state, event)?;
            // Another node may have been faster.
            self.commit_once("recording the traffic log", changes)
                .await?;
        }
    }
}

/// The position after which the next record begins: the end of the latest one, or 0 in another file of events, whose
/// positions begin again.
async fn continued(queue: &Queue, recorded: &Recorded) -> Result<i64, Fault> {
    let ends = queue.traffic_ends().await?;
    if ends.first > recorded.last {
        return Ok(recorded.last);
    }
    let hash = queue.traffic_hash(recorded.last).await?;
    let hash = hash.map_or_else(String::new, |hash| hash.to_string());
    Ok(match hash == recorded.hash && ends.last >= recorded.last {
        true => recorded.last,
        false => 0,
    })
}

fn object<'a>(node: &'a str, hashed: &HashedTraffic, is_restarted: bool) -> TrafficHashed<'a> {
    TrafficHashed {
        node,
        from: hashed.from,
        to: hashed.to,
        count: hashed.count,
        sha256: hex(&hashed.root.0),
        first: hashed.first,
        last: hashed.last,
        is_restarted,
    }
}
