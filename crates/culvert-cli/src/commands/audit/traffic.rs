//! `culvert audit verify --traffic`: compares the retained traffic log with its records in the audit log.

use std::time::Duration;

use culvert_base::{Clock, SystemClock, Timestamp};
use culvert_installation::config::Settings;
use culvert_store::{AuditLog, AuditRow, StoreUrl, TrafficLog, TrafficState};
use serde::Deserialize;

use super::{ROWS, failed};
use crate::commands::{Failure, say};

/// The kind of the records.
const RECORD: &str = "traffic_log_hashed.v0";
/// The event of a start. It is written before the first record.
const START: &str = "server_started.v0";
/// The source of events of commands, which make no records.
const COMMAND: &str = "CLI";
/// Records that are further behind are missing. A server makes them each hour.
const BEHIND_MAX: Duration = Duration::from_secs(7_200);
/// How far the clock of the server may be ahead.
const AHEAD_MAX: Duration = Duration::from_secs(600);

/// An event of the audit log, as far as it matters here.
#[derive(Deserialize)]
struct Event {
    event_id: String,
    event_type: String,
    principal: Option<Principal>,
    object: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Principal {
    source: Option<String>,
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

/// The records in the audit log.
#[derive(Default)]
struct Records {
    /// Those of the current traffic log, with the IDs of their events.
    current: Vec<(String, Record)>,
    /// How many there are of earlier ones.
    former: usize,
    /// The time of the last event that a running server wrote.
    latest_at: Option<Timestamp>,
}

/// What the caller knows of and accepts.
#[derive(Clone, Copy)]
pub(super) struct Accepted {
    /// Records of a former file of events, which cannot be compared.
    pub(super) former: bool,
    /// Pieces that were removed before the retention of the settings ended.
    pub(super) removed: bool,
}

/// How many records are in each state.
#[derive(Default)]
struct Counts {
    same: usize,
    removed: usize,
    /// Those of whose pieces some were removed, or all, before the retention ended, and the last of them.
    removed_early: usize,
    last_removed_early: Option<usize>,
}

/// Compares all.
pub(super) async fn verify(
    log: &AuditLog,
    url: &StoreUrl,
    settings: &Settings,
    accepted: Accepted,
) -> Result<(), Failure> {
    let records = records(log).await?;
    if let (1.., false, Some((id, record))) =
        (records.former, accepted.former, records.current.first())
    {
        let former = records.former;
        return Err(Failure::Failed(format!(
            "the traffic log was replaced, restored or changed before {}: {former} records before {id} have other pieces, or do not continue; \
             if you know of that loss, add `--accept-former`",
            record.to
        )));
    }
    let Some(traffic) = TrafficLog::open(url).await.map_err(failed)? else {
        return match records.current.last() {
            None => say("the traffic log has no hashes yet"),
            Some((id, record)) => Err(Failure::Failed(format!(
                "the traffic log is missing, and {id} records it up to {}",
                record.to
            ))),
        };
    };
    let compared = compare(&traffic, &records, settings, accepted).await;
    traffic.close().await;
    compared
}

async fn records(log: &AuditLog) -> Result<Records, Failure> {
    let extent = log.extent().await.map_err(failed)?;
    let mut after = extent.anchor.seq;
    let mut records = Records::default();
    loop {
        let rows = log.rows(after, extent.last, ROWS).await.map_err(failed)?;
        let Some(last) = rows.last() else {
            return Ok(records);
        };
        after = last.seq;
        for row in &rows {
            records.read(row).map_err(|error| {
                let seq = row.seq;
                Failure::Failed(format!(
                    "event {seq} of the audit log is not readable: {error}"
                ))
            })?;
        }
    }
}

impl Records {
    fn read(&mut self, row: &AuditRow) -> Result<(), serde_json::Error> {
        let event: Event = serde_json::from_str(&row.body)?;
        let source = event.principal.and_then(|principal| principal.source);
        if event.event_type != START && source.as_deref() != Some(COMMAND) {
            let at = Timestamp::from_unix_nanos(row.happened_at);
            self.latest_at = self.latest_at.max(Some(at));
        }
        if event.event_type != RECORD {
            return Ok(());
        }
        let record: Record = serde_json::from_value(event.object.unwrap_or_default())?;
        let before = self.current.last().map(|(_, before)| before.last);
        // Positions begin again in another file of events. A record that does not continue the one before is as good as
        // that: the server did not know it.
        if record.is_restarted || before.is_some_and(|before| before + 1 != record.first) {
            self.former += self.current.len();
            self.current.clear();
        }
        self.current.push((event.event_id, record));
        Ok(())
    }
}

async fn compare(
    traffic: &TrafficLog,
    records: &Records,
    settings: &Settings,
    accepted: Accepted,
) -> Result<(), Failure> {
    let now = SystemClock.now();
    let retention = settings.events.traffic_retention.0;
    let is_early = |at: &str| {
        let at = Timestamp::parse(at);
        !retention.is_zero() && at.is_none_or(|at| now.since(at) < retention)
    };
    let mut counts = Counts::default();
    for (index, (id, record)) in records.current.iter().enumerate() {
        let range = (record.first, record.last);
        let compared = traffic.compare(range, record.count, &record.sha256);
        let Record {
            first,
            last,
            from,
            to,
            ..
        } = record;
        let is_early = match compared.await.map_err(failed)? {
            TrafficState::Same { is_cut } => {
                counts.same += 1;
                is_cut && is_early(from)
            }
            TrafficState::Removed => {
                counts.removed += 1;
                is_early(to)
            }
            TrafficState::Incomplete => {
                return Err(Failure::Failed(format!(
                    "the traffic log was changed: of its pieces {first} to {last}, of {from} to {to}, some were removed with their hashes, \
                     which retention keeps; the others cannot be compared with the record {id}"
                )));
            }
            TrafficState::Changed => {
                return Err(Failure::Failed(format!(
                    "the traffic log was changed: its pieces {first} to {last}, of {from} to {to}, are not those of the record {id}"
                )));
            }
        };
        if is_early {
            counts.removed_early += 1;
            counts.last_removed_early = Some(index);
        }
    }
    let n_unrecorded = compare_ends(traffic, records, now).await?;
    let is_explained = is_full(traffic, settings).await?;
    if let (Some(index), false, false) = (counts.last_removed_early, is_explained, accepted.removed)
        && let Some((id, record)) = records.current.get(index)
    {
        return Err(Failure::Failed(format!(
            "pieces of {} records of the traffic log were removed, up to {id} of {}, before `events.traffic_retention` of the settings ended, and \
             the log has not the size to need it; if the settings were others, add `--accept-removed`",
            counts.removed_early, record.to
        )));
    }
    if counts.removed > 0 {
        say(format_args!(
            "unknown: retention removed all pieces of {} records; nothing is proven of them",
            counts.removed
        ))?;
    }
    if n_unrecorded > 0 {
        say(format_args!(
            "unknown: {n_unrecorded} pieces have no record yet; nothing is proven of them"
        ))?;
    }
    say(format_args!(
        "the traffic log is that of its records: verified={} removed={} removed_early={} former={} pieces_without_record={n_unrecorded}",
        counts.same, counts.removed, counts.removed_early, records.former
    ))
}

/// Compares the pieces before the first record and behind the last one. Returns how many pieces have no record yet.
async fn compare_ends(
    traffic: &TrafficLog,
    records: &Records,
    now: Timestamp,
) -> Result<u64, Failure> {
    let (first, last) = traffic.ends().await.map_err(failed)?;
    let recorded_from = records
        .current
        .first()
        .map_or(1, |(_, record)| record.first);
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
    let recorded_to = records.current.last().map_or(0, |(_, record)| record.last);
    let unrecorded = traffic.unrecorded(recorded_to).await.map_err(failed)?;
    if let Some(piece) = unrecorded.changed {
        return Err(Failure::Failed(format!(
            "the traffic log was changed: its piece {piece}, which has no record yet, is not the one of its hash"
        )));
    }
    if let Some((from, to)) = unrecorded.times {
        if to.since(now) > AHEAD_MAX {
            return Err(Failure::Failed(format!(
                "the traffic log was changed, or a clock is wrong: pieces without a record have events of {to}, which is in the future"
            )));
        }
        let latest = records.latest_at.map_or(to, |at| at.max(to));
        if latest.since(from) > BEHIND_MAX {
            return Err(Failure::Failed(format!(
                "the traffic log has no record of its events since {from}, though the server wrote until {latest}: it makes a record each hour, \
                 so something prevents it; `/readyz` and the server log say more"
            )));
        }
    }
    Ok(unrecorded.count)
}

/// Whether the traffic log is large enough that its size explains earlier removals. Captured messages count, of which those
/// of removed pieces, at most half of the limit, may be gone.
async fn is_full(traffic: &TrafficLog, settings: &Settings) -> Result<bool, Failure> {
    let (bytes, largest) = traffic.bytes().await.map_err(failed)?;
    let limit = settings.events.traffic_retention_bytes;
    Ok(bytes.saturating_add(largest) >= limit / 2)
}
