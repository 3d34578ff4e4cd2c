//! Leases: of one batch, of several, and of a run.

use std::collections::HashMap;

use culvert_base::Timestamp;

use super::{QueueLog, QueueOutcome, Settlement};
use crate::commit::writer::Outcome;
use crate::database::dialect::{Arg, Connection, Row};
use crate::database::statements::{BODIES, LEASE_LISTED, events};
use crate::queue::batch::{
    BatchClass, DeadLetterReason, Gathering, Lease, QueueError, Run, checksum, class_number, small,
};

pub(super) async fn lease(
    log: &QueueLog,
    connection: &mut Connection,
    (destination, owner): (&str, &str),
    until: Timestamp,
    now: Timestamp,
) -> Result<Outcome<QueueLog>, sqlx::Error> {
    let mut has_dead_lettered = false;
    for class in [BatchClass::Audit, BatchClass::Traffic] {
        while let Some(row) = connection
            .row(
                events::LEASE,
                &[
                    Arg::Text(owner),
                    Arg::Int(until.unix_nanos()),
                    Arg::Text(destination),
                    Arg::Int(class_number(class)),
                    Arg::Int(now.unix_nanos()),
                ],
            )
            .await?
        {
            let body: Option<Vec<u8>> = row.get(7)?;
            let body = body.unwrap_or_default();
            if let Some(lease) =
                whole(log, connection, &row, body, (destination, class), now).await?
            {
                return Ok(Outcome::Written(QueueOutcome::Lease(Some(Box::new(lease)))));
            }
            has_dead_lettered = true;
        }
    }
    Ok(if has_dead_lettered {
        Outcome::Written(QueueOutcome::Lease(None))
    } else {
        Outcome::Unchanged(QueueOutcome::Lease(None))
    })
}

/// A batch that was just leased with its body; a damaged one is dead-lettered instead.
async fn whole(
    log: &QueueLog,
    connection: &mut Connection,
    row: &Row,
    body: Vec<u8>,
    (destination, class): (&str, BatchClass),
    now: Timestamp,
) -> Result<Option<Lease>, sqlx::Error> {
    let crc: i64 = row.get(2)?;
    let lease = lease_of(row, body, destination, class)?;
    if crc == checksum(&lease.body) {
        return Ok(Some(lease));
    }
    tracing::error!(
        batch.id = lease.batch,
        destination.id = destination,
        "batch {} for {destination} is damaged on disk and became a dead letter",
        lease.batch
    );
    let why = DeadLetterReason {
        class: "damaged".to_owned(),
        code: String::new(),
        text: "the stored batch does not match its checksum".to_owned(),
    };
    let held = [Arg::Int(lease.batch), Arg::Int(lease.fence)];
    Settlement::DeadLetter { why, at: now }
        .apply(log, connection, held)
        .await?;
    Ok(None)
}

fn lease_of(
    row: &Row,
    body: Vec<u8>,
    destination: &str,
    class: BatchClass,
) -> Result<Lease, sqlx::Error> {
    Ok(Lease {
        batch: row.get(0)?,
        destination: destination.to_owned(),
        class,
        count: small(row, 1)?,
        attempt: small(row, 3)?,
        first_at: Timestamp::from_unix_nanos(row.get(4)?),
        fence: row.get(5)?,
        why: row.get(6)?,
        body,
    })
}

/// Leases free batches from the head of their class. Returns their rows in that order; `None` if another node leased
/// one of them first, because it may have leased the head.
async fn lease_listed(
    connection: &mut Connection,
    ids: &[i64],
    owner: &str,
    until: Timestamp,
    now: Timestamp,
) -> Result<Option<Vec<Row>>, sqlx::Error> {
    let listed = list(ids);
    let arguments = [
        Arg::Text(owner),
        Arg::Int(until.unix_nanos()),
        Arg::Text(&listed),
        Arg::Int(now.unix_nanos()),
    ];
    let sql = connection.spell(LEASE_LISTED);
    let mut by_id = by_id(connection.rows(sql, &arguments).await?)?;
    Ok(ids.iter().map(|id| by_id.remove(id)).collect())
}

fn by_id(rows: Vec<Row>) -> Result<HashMap<i64, Row>, sqlx::Error> {
    let pairs = rows.into_iter().map(|row| Ok((row.get(0)?, row)));
    pairs.collect()
}

/// Ids as JSON.
fn list(ids: &[i64]) -> String {
    let ids: Vec<String> = ids.iter().map(i64::to_string).collect();
    format!("[{}]", ids.join(","))
}

/// Maximum number of batches leased together with their bodies.
const SEVERAL_MAX: i64 = 128;

pub(super) async fn lease_several(
    log: &QueueLog,
    connection: &mut Connection,
    (destination, owner): (&str, &str),
    until: Timestamp,
    now: Timestamp,
    bytes_max: u64,
) -> Result<Outcome<QueueLog>, sqlx::Error> {
    let now_at = now.unix_nanos();
    for class in [BatchClass::Audit, BatchClass::Traffic] {
        let keys = [
            Arg::Text(destination),
            Arg::Int(class_number(class)),
            Arg::Int(SEVERAL_MAX),
        ];
        let mut ids = Vec::new();
        let mut bytes = 0u64;
        for row in connection.rows(events::LINE, &keys).await? {
            let size = u64::try_from(row.get::<i64>(1)?).unwrap_or(0);
            bytes = bytes.saturating_add(size);
            // A batch that is leased or waits for its time delays those behind it.
            if free_at(&row)? > now_at || (!ids.is_empty() && bytes > bytes_max) {
                break;
            }
            ids.push(row.get(0)?);
        }
        if ids.is_empty() {
            continue;
        }
        let Some(rows) = lease_listed(connection, &ids, owner, until, now).await? else {
            return Ok(Outcome::Refused(QueueError::Lost));
        };
        let listed = list(&ids);
        let sql = connection.spell(BODIES);
        let bodies = connection.rows(sql, &[Arg::Text(&listed)]).await?;
        let bodies = by_id(bodies)?;
        let mut leases = Vec::with_capacity(rows.len());
        for (id, row) in ids.iter().zip(&rows) {
            let body = bodies.get(id).map_or(Ok(Vec::new()), |row| row.get(1))?;
            leases.extend(whole(log, connection, row, body, (destination, class), now).await?);
        }
        return Ok(Outcome::Written(QueueOutcome::Leases(leases)));
    }
    Ok(Outcome::Unchanged(QueueOutcome::Leases(Vec::new())))
}

/// Batches of a class that are read for a run.
const RUN_MAX: i64 = 8192;

pub(super) async fn lease_run(
    connection: &mut Connection,
    destination: &str,
    owner: &str,
    until: Timestamp,
    now: Timestamp,
    gathering: Gathering,
) -> Result<Outcome<QueueLog>, sqlx::Error> {
    let now_at = now.unix_nanos();
    let mut next_at = None;
    for class in [BatchClass::Audit, BatchClass::Traffic] {
        let keys = [
            Arg::Text(destination),
            Arg::Int(class_number(class)),
            Arg::Int(RUN_MAX),
        ];
        let rows = connection.rows(events::LINE, &keys).await?;
        let mut ids = Vec::new();
        let mut bytes = 0;
        // The head may be leased when it is free and due, and was tried before or is old enough.
        let mut ripe_at = None;
        let mut is_full = i64::try_from(rows.len()).unwrap_or(i64::MAX) >= RUN_MAX;
        for row in &rows {
            let (attempt, first_at): (i64, i64) = (row.get(2)?, row.get(3)?);
            let free_at = free_at(row)?;
            if ids.is_empty() {
                let first_at = Timestamp::from_unix_nanos(first_at);
                // A batch of a time that has yet to come was appended by a wrong clock.
                let old_at = match first_at > now.plus(gathering.age_max) {
                    true => now_at,
                    false => first_at.plus(gathering.age_max).unix_nanos(),
                };
                ripe_at = Some((free_at, if attempt > 0 { free_at } else { old_at }));
            }
            if free_at > now_at {
                break;
            }
            let size = u64::try_from(row.get::<i64>(1)?).unwrap_or(0);
            if !ids.is_empty() && size.saturating_add(bytes) > gathering.bytes_max {
                is_full = true;
                break;
            }
            bytes += size;
            is_full |= bytes >= gathering.bytes_max;
            ids.push(row.get::<i64>(0)?);
        }
        let Some((free_at, old_at)) = ripe_at else {
            continue;
        };
        if ids.is_empty() || !(is_full || old_at <= now_at) {
            let at = free_at.max(old_at);
            next_at = Some(next_at.map_or(at, |next: i64| next.min(at)));
            continue;
        }
        let Some(rows) = lease_listed(connection, &ids, owner, until, now).await? else {
            return Ok(Outcome::Refused(QueueError::Lost));
        };
        let leases = rows
            .iter()
            .map(|row| lease_of(row, Vec::new(), destination, class));
        let leases = leases.collect::<Result<_, _>>()?;
        let next_at = None;
        return Ok(Outcome::Written(QueueOutcome::Run(Run { leases, next_at })));
    }
    let next_at = next_at.map(Timestamp::from_unix_nanos);
    let leases = Vec::new();
    Ok(Outcome::Unchanged(QueueOutcome::Run(Run {
        leases,
        next_at,
    })))
}

/// When a batch may be leased.
fn free_at(row: &Row) -> Result<i64, sqlx::Error> {
    let (due_at, lease_until): (i64, Option<i64>) = (row.get(4)?, row.get(5)?);
    Ok(due_at.max(lease_until.unwrap_or(i64::MIN)))
}
