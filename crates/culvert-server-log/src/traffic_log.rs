//! Records of the traffic log in the audit log: the root over the pieces of each hour, so that the tree of the audit log
//! vouches for them too (contract: audit 4).

use std::sync::Mutex;
use std::time::Duration;

use culvert_base::sync::lock;
use culvert_base::text::hex;
use culvert_base::{Fault, Timestamp};
use culvert_resources::stored::Format;
use culvert_store::{AuditEvent, AuditKey, HashedTraffic, Order, PieceFound, Queue};
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
/// A record is made when the oldest piece without one has this age, or the latest record.
const EVERY: Duration = Duration::from_secs(3_600);
/// Records that are further behind are a disturbance.
const BEHIND_MAX: Duration = Duration::from_secs(7_200);
/// Pieces that are written for longer are a disturbance.
const WRITTEN_WITHIN: Duration = Duration::from_secs(600);
/// Number of pieces from which a record is not extended.
const PIECES_MAX: u64 = 16_384;

/// What a process sees of the records. Columns of the events database, which an attacker may change, are not the only
/// source.
#[derive(Debug, Default)]
pub struct TrafficRecords(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// The last look after which no record was missing; before it, the first look.
    complete_at: Option<Timestamp>,
    /// The end of the latest record, and since when there are pieces behind it.
    waiting: Option<(i64, Timestamp)>,
    /// The earliest event without a record, by its stored time.
    oldest: Option<Timestamp>,
    /// The position behind which pieces are being written, and since when.
    unsettled: Option<(i64, Timestamp)>,
    behind: Duration,
    is_unsettled_for_long: bool,
    warned_at: Option<Timestamp>,
}

impl TrafficRecords {
    /// How far the records are behind: the time since the last look after which none was missing, or the age of the oldest
    /// event without a record. Zero if none is missing.
    pub fn behind(&self) -> Duration {
        lock(&self.0).behind
    }

    /// A disturbance, for a public page.
    pub fn notice(&self) -> Option<&'static str> {
        let seen = lock(&self.0);
        if seen.behind > BEHIND_MAX {
            return Some("the traffic log has no record in the audit log for more than two hours");
        }
        let notice =
            "a writer of the traffic log does not end; searches and records omit later events";
        seen.is_unsettled_for_long.then_some(notice)
    }

    /// Since when this process sees pieces behind this position without a record.
    fn waiting_since(&self, after: i64, now: Timestamp) -> Timestamp {
        let mut seen = lock(&self.0);
        match seen.waiting {
            Some((known, since)) if known == after => since,
            _ => {
                seen.waiting = Some((after, now));
                now
            }
        }
    }

    fn is_complete(&self, now: Timestamp) {
        let mut seen = lock(&self.0);
        (seen.complete_at, seen.oldest) = (Some(now), None);
    }

    fn is_missing(&self, oldest: Timestamp) {
        lock(&self.0).oldest = Some(oldest);
    }

    fn sees_settled(&self, settled: i64, last: i64, now: Timestamp) {
        let mut seen = lock(&self.0);
        seen.unsettled = (settled < last).then_some(match seen.unsettled {
            Some((known, since)) if known == settled => (settled, since),
            _ => (settled, now),
        });
    }

    /// Ends a look. Logs a disturbance once an hour.
    fn looked(&self, now: Timestamp) {
        let mut seen = lock(&self.0);
        let complete_at = *seen.complete_at.get_or_insert(now);
        let oldest = seen.oldest.unwrap_or(now);
        seen.behind = now.since(complete_at).max(now.since(oldest));
        let held = seen.unsettled.map(|(_, since)| now.since(since));
        seen.is_unsettled_for_long = held.is_some_and(|held| held > WRITTEN_WITHIN);
        let is_disturbed = seen.behind > BEHIND_MAX || seen.is_unsettled_for_long;
        if !is_disturbed {
            seen.warned_at = None;
        } else if seen.warned_at.is_none_or(|at| now.since(at) >= EVERY) {
            seen.warned_at = Some(now);
            tracing::error!(
                behind_seconds = seen.behind.as_secs(),
                written_behind_position = seen.unsettled.map(|(position, _)| position),
                written_for_seconds = held.map(|held| held.as_secs()),
                "the records of the traffic log in the audit log are behind, or a transaction that writes to it does not end; \
                 on PostgreSQL, `pg_locks` has its advisory lock and its process"
            );
        }
    }
}

/// Stands for a stored hash that is malformed.
const MALFORMED: &str = "malformed";

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
    /// Number of pieces of the traffic log, each of many events, with those that retention removed meanwhile.
    count: u64,
    /// The root of the tree over the stored pieces (RFC 6962, section 2.1, with SHA-256), in hexadecimal digits.
    sha256: String,
    /// The first position of the pieces. It continues the record before.
    first: i64,
    /// The last position.
    last: i64,
    /// Whether the pieces of the record before are not there any more, or the server does not know that record: the file of
    /// events was replaced, restored or changed. Positions then begin at 1 again.
    is_restarted: bool,
}

/// The end of the latest record.
#[derive(Debug, Deserialize, Serialize)]
struct Recorded {
    format: Format<1>,
    last: i64,
    /// The hash of the last piece, or [`MALFORMED`] if the stored one is.
    hash: String,
}

impl ServerLog {
    /// Records the pieces of the traffic log, if the oldest without a record is an hour old, or the latest record. With
    /// `all`, also younger ones.
    pub async fn record_traffic(
        &self,
        records: &TrafficRecords,
        node: &str,
        queue: &Queue,
        (now, all): (Timestamp, bool),
    ) -> Result<(), Fault> {
        let recorded = self.record_pieces(records, node, queue, (now, all)).await;
        records.looked(now);
        recorded
    }

    async fn record_pieces(
        &self,
        records: &TrafficRecords,
        node: &str,
        queue: &Queue,
        (now, all): (Timestamp, bool),
    ) -> Result<(), Fault> {
        let ends = queue.hashed_traffic_ends().await?;
        records.sees_settled(ends.settled, ends.last, now);
        let mut was_restarted = false;
        loop {
            let known = self.mark::<Recorded>(HASHED, TRAFFIC).await?;
            let (after, is_restarted) = match &known {
                Some(mark) => match &mark.state {
                    Some(recorded) => continued(queue, recorded).await?,
                    // The records before it are not continued.
                    None => (0, true),
                },
                None => (0, self.has_traffic_record().await?),
            };
            let Some(begins_at) = queue.traffic_begins_at(after).await? else {
                records.is_complete(now);
                return Ok(());
            };
            let since = records.waiting_since(after, now);
            let recorded_at = known.as_ref().map(|mark| mark.document.head.updated_at);
            let is_due = [Some(begins_at), Some(since), recorded_at];
            let mut is_due = is_due.into_iter().flatten();
            if !all && is_due.all(|at| now.since(at) < EVERY) {
                records.is_complete(now);
                return Ok(());
            }
            records.is_missing(begins_at);
            let Some(hashed) = queue.hash_traffic(after, ends.settled, PIECES_MAX).await? else {
                // Written while this looked, or being written for long.
                if ends.settled == ends.last {
                    records.is_complete(now);
                }
                return Ok(());
            };
            let Some(account) = self.account().await? else {
                return Ok(());
            };
            if is_restarted {
                // A log that changes at each look makes one record a look, not records without end.
                if std::mem::replace(&mut was_restarted, true) {
                    return Err(Fault::bare(
                        "recording the traffic log: it changes meanwhile",
                    ));
                }
                tracing::error!(
                    "the traffic log is not the one that the audit log has a record of: the file of events was replaced, restored or \
                     changed; `culvert audit verify --traffic` says so until it is accepted"
                );
            }
            let object = object(node, &hashed, is_restarted);
            let event = self.event(&account, TRAFFIC_LOG_HASHED, None, &object)?;
            // What the next record is compared with: the hash as it is stored.
            let stored = queue.traffic_piece(hashed.last).await?;
            let state = Recorded {
                format: Format,
                last: hashed.last,
                hash: match stored {
                    PieceFound::Malformed => MALFORMED.to_owned(),
                    _ => hashed.last_leaf.to_string(),
                },
            };
            let (known, event) = (known.map(|mark| mark.document), AuditEvent::Emit(event));
            let changes = self.marking(HASHED, TRAFFIC, known, &state, event)?;
            // Another node may have been faster.
            self.commit_once("recording the traffic log", changes)
                .await?;
        }
    }

    /// The revision of the latest record; `None` if there is none.
    pub(crate) async fn traffic_record(&self) -> Result<Option<i64>, Fault> {
        let mark = self.mark::<Recorded>(HASHED, TRAFFIC).await?;
        Ok(mark.map(|mark| mark.document.head.revision))
    }

    /// Whether the audit log has a record, though its mark is missing.
    async fn has_traffic_record(&self) -> Result<bool, Fault> {
        let log = self.store.audit_log();
        let kind = AuditKey::Kind(TRAFFIC_LOG_HASHED);
        let rows = log.page(kind, Order::NewestFirst, 1..=i64::MAX, 1).await?;
        Ok(!rows.is_empty())
    }
}

/// The position after which the next record begins: the end of the latest one, or 0 in another file of events, whose
/// positions begin again. And whether it is another one.
async fn continued(queue: &Queue, recorded: &Recorded) -> Result<(i64, bool), Fault> {
    Ok(match queue.traffic_piece(recorded.last).await? {
        PieceFound::Leaf(hash) if hash.to_string() == recorded.hash => (recorded.last, false),
        PieceFound::Removed => (recorded.last, false),
        PieceFound::Malformed if recorded.hash == MALFORMED => (recorded.last, false),
        PieceFound::Leaf(_) | PieceFound::Malformed | PieceFound::Missing => (0, true),
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
