//! `culvert audit verify --traffic`: compares the retained traffic log with its records in the audit log.

use culvert_store::{AuditLog, StoreUrl, TrafficLog, TrafficState};
use serde::Deserialize;

use super::{ROWS, failed};
use crate::commands::{Failure, say};

/// The kind of the records.
const RECORD: &str = "traffic_log_hashed.v0";

/// An event of the audit log, as far as it matters here.
#[derive(Deserialize)]
struct Event {
    event_id: String,
    event_type: String,
    object: Option<serde_json::Value>,
}

/// A record of consecutive pieces.
#[derive(Deserialize)]
struct Record {
    first: i64,
    last: i64,
    count: u64,
    sha256: String,
    from: String,
    to: String,
    is_restarted: bool,
}

/// How many records are in each state.
#[derive(Default)]
struct Counts {
    same: usize,
    removed: usize,
    incomplete: usize,
    /// Before the file of events was replaced, restored or changed.
    former: usize,
}

/// Compares all. Records of a former file cannot be compared: that fails unless `accepts_former`.
pub(super) async fn verify(
    log: &AuditLog,
    url: &StoreUrl,
    accepts_former: bool,
) -> Result<(), Failure> {
    let (records, former) = records(log).await?;
    let mut counts = Counts {
        former,
        ..Counts::default()
    };
    if let (1.., false, Some((id, record))) = (former, accepts_former, records.first()) {
        return Err(Failure::Failed(format!(
            "the traffic log was replaced, restored or changed before {}: {former} records before {id} have other pieces; \
             if you know of that loss, add `--accept-former`",
            record.to
        )));
    }
    let Some(traffic) = TrafficLog::open(url).await.map_err(failed)? else {
        return match records.last() {
            None => say("the traffic log has no hashes yet"),
            Some((id, record)) => Err(Failure::Failed(format!(
                "the traffic log is missing, and {id} records it up to {}",
                record.to
            ))),
        };
    };
    let compared = compare(&traffic, &records, &mut counts).await;
    traffic.close().await;
    compared
}

/// The records of the current traffic log, with the IDs of their events, and how many there are of earlier ones.
async fn records(log: &AuditLog) -> Result<(Vec<(String, Record)>, usize), Failure> {
    let extent = log.extent().await.map_err(failed)?;
    let (mut after, mut former) = (extent.anchor.seq, 0);
    let mut records: Vec<(String, Record)> = Vec::new();
    loop {
        let rows = log.rows(after, extent.last, ROWS).await.map_err(failed)?;
        let Some(last) = rows.last() else {
            return Ok((records, former));
        };
        after = last.seq;
        for row in rows.iter().filter(|row| row.body.contains(RECORD)) {
            let unreadable = |error: serde_json::Error| {
                let seq = row.seq;
                Failure::Failed(format!(
                    "event {seq} of the audit log is not readable: {error}"
                ))
            };
            let event: Event = serde_json::from_str(&row.body).map_err(unreadable)?;
            if event.event_type != RECORD {
                continue;
            }
            let object = event.object.unwrap_or_default();
            let record: Record = serde_json::from_value(object).map_err(unreadable)?;
            let before = records.last().map(|(_, before)| before.last);
            // Positions begin again in another file of events.
            if record.is_restarted {
                former += records.len();
                records.clear();
            } else if let Some(before) = before.filter(|before| before + 1 != record.first) {
                let (id, first) = (event.event_id, record.first);
                return Err(Failure::Failed(format!(
                    "the records of the traffic log do not continue each other: one ends with the piece {before}, and {id} begins with {first}"
                )));
            }
            records.push((event.event_id, record));
        }
    }
}

async fn compare(
    traffic: &TrafficLog,
    records: &[(String, Record)],
    counts: &mut Counts,
) -> Result<(), Failure> {
    for (id, record) in records {
        let range = (record.first, record.last);
        let compared = traffic.compare(range, record.count, &record.sha256);
        match compared.await.map_err(failed)? {
            TrafficState::Same => counts.same += 1,
            TrafficState::Removed => counts.removed += 1,
            TrafficState::Incomplete => counts.incomplete += 1,
            TrafficState::Changed => {
                let Record {
                    first,
                    last,
                    from,
                    to,
                    ..
                } = record;
                return Err(Failure::Failed(format!(
                    "the traffic log was changed: its pieces {first} to {last}, of {from} to {to}, are not those of the record {id}"
                )));
            }
        }
    }
    let (first, last) = traffic.ends().await.map_err(failed)?;
    let recorded_from = records.first().map_or(1, |(_, record)| record.first);
    if first < recorded_from && first <= last {
        // The server numbers pieces from 1; records of older pieces may have been deleted with their events.
        if first < 1 || recorded_from == 1 {
            return Err(Failure::Failed(format!(
                "the traffic log was changed: it has a piece {first}, before all that it had"
            )));
        }
        say(format_args!(
            "unknown: the records of the pieces {first} to {} are not retained",
            recorded_from - 1
        ))?;
    }
    let recorded_to = records.last().map_or(0, |(_, record)| record.last);
    let positions = last.saturating_sub(recorded_to.max(first - 1)).max(0);
    say(format_args!(
        "the traffic log is that of its records: verified={} removed={} incomplete={} former={} positions_without_record={positions}",
        counts.same, counts.removed, counts.incomplete, counts.former
    ))
}
