//! Pages of the two logs of events, found by index: audit events by object, actor or kind, and pieces of the
//! traffic log by endpoint and by their summaries.
//!
//! Reading stops at a page's limit, in either direction. A row that a program of an older format
//! wrote is not in the indexes of objects and actors until [`Store::index_events`] adds it. Until
//! then [`AuditLog::is_indexed`] is false, and readers must scan all rows.
//!
//! Not here: how rows get into the indexes (`event_names`, the queue), the content of a piece, and
//! which events a caller may read.

use std::ops::RangeInclusive;

use culvert_base::{Fault, Timestamp};

use crate::audit_log::audit::{AuditLog, AuditRow};
use crate::commit::state_log::StateCommand;
use crate::database::dialect::{Arg, While};
use crate::database::statements::{
    AUDIT_NEWEST_OF, AUDIT_OLDEST_OF, SUMMARIES_OF_NEWEST, SUMMARIES_OF_OLDEST, events, state,
};
use crate::queue::Queue;
use crate::store::Store;

/// The index that is used to read the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditKey<'a> {
    /// None: every row, in commit order.
    All,
    /// The events about the object with this id.
    Object(&'a str),
    /// The events whose principal has this id.
    Actor(&'a str),
    /// The events of this kind.
    Kind(&'a str),
}

/// A direction in which a log is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// From the newest event to the oldest.
    NewestFirst,
    /// From the oldest event to the newest.
    OldestFirst,
}

/// A row with the hash before it, which is `None` for the first retained row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkedRow {
    /// The row.
    pub row: AuditRow,
    /// The hash of the row before it.
    pub previous: Option<String>,
}

/// The ends of the traffic log. In an empty log, the first is beyond the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrafficEnds {
    /// The first position.
    pub first: i64,
    /// The last position before which no further piece can appear. It may be less than at an earlier time, though
    /// nothing appeared since.
    pub settled: i64,
    /// The last position. It is less than at an earlier time only if the database lost pieces.
    pub last: i64,
}

/// A piece of the traffic log without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SummarizedPiece {
    /// Position; ascending.
    pub id: i64,
    /// Time of its last event.
    pub last_at: Timestamp,
    /// Which values its events have; `None` if a program of an older format wrote it.
    pub summary: Option<Vec<u8>>,
}

impl AuditLog {
    /// At most `limit` rows at these positions.
    pub async fn page(
        &self,
        key: AuditKey<'_>,
        order: Order,
        positions: RangeInclusive<i64>,
        limit: u32,
    ) -> Result<Vec<LinkedRow>, Fault> {
        let doing = "reading the audit log";
        let (of_all, [of_object, of_actor, of_kind]) = match order {
            Order::NewestFirst => (state::AUDIT_NEWEST, AUDIT_NEWEST_OF),
            Order::OldestFirst => (state::AUDIT_OLDEST, AUDIT_OLDEST_OF),
        };
        let (sql, value) = match key {
            AuditKey::All => (of_all, None),
            AuditKey::Object(id) => (self.pool.spell(of_object), Some(id)),
            AuditKey::Actor(id) => (self.pool.spell(of_actor), Some(id)),
            AuditKey::Kind(name) => (self.pool.spell(of_kind), Some(name)),
        };
        let mut arguments = vec![
            Arg::Int(*positions.start()),
            Arg::Int(*positions.end()),
            Arg::Int(i64::from(limit)),
        ];
        arguments.extend(value.map(Arg::Text));
        let rows = self.pool.rows(doing, sql, &arguments).await?;
        let linked = |row| {
            Ok(LinkedRow {
                row: AuditRow::read(row)?,
                previous: row.get(8)?,
            })
        };
        rows.iter().map(|row| linked(row).during(doing)).collect()
    }

    /// Whether every row is in the indexes of objects and actors.
    pub async fn is_indexed(&self) -> Result<bool, Fault> {
        let doing = "looking for audit events without an index";
        Ok(self
            .pool
            .row(doing, state::UNINDEXED_ONE, &[])
            .await?
            .is_none())
    }
}

/// Rows indexed in one transaction.
const INDEXED_AT_ONCE: i64 = 512;

impl Store {
    /// Adds all missing audit events to the indexes of objects and actors. Each step is a
    /// transaction.
    pub async fn index_events(&self) -> Result<u64, Fault> {
        let mut n_indexed = 0;
        while !self.audit_log().is_indexed().await? {
            let rows_max = INDEXED_AT_ONCE;
            let step = StateCommand::IndexEvents { rows_max };
            let n = self.write("indexing audit events", step).await?;
            n_indexed += n;
            if n == 0 {
                break;
            }
        }
        Ok(n_indexed)
    }
}

impl Queue {
    /// The summaries of at most `limit` pieces at these positions. Only those of `endpoint`, if it is given and every
    /// piece is indexed.
    pub async fn traffic_summaries(
        &self,
        endpoint: Option<&str>,
        order: Order,
        positions: RangeInclusive<i64>,
        limit: u32,
    ) -> Result<Vec<SummarizedPiece>, Fault> {
        let doing = "reading summaries of the traffic log";
        let by_endpoint = match endpoint {
            Some(endpoint) if self.is_traffic_indexed().await? => Some(endpoint),
            _ => None,
        };
        let sql = match (order, by_endpoint) {
            (Order::NewestFirst, None) => events::SUMMARIES_NEWEST,
            (Order::NewestFirst, Some(_)) => self.pool().spell(SUMMARIES_OF_NEWEST),
            (Order::OldestFirst, None) => events::SUMMARIES_OLDEST,
            (Order::OldestFirst, Some(_)) => self.pool().spell(SUMMARIES_OF_OLDEST),
        };
        let mut arguments = vec![
            Arg::Int(*positions.start()),
            Arg::Int(*positions.end()),
            Arg::Int(i64::from(limit)),
        ];
        arguments.extend(by_endpoint.map(Arg::Text));
        let rows = self.pool().rows(doing, sql, &arguments).await?;
        let piece = |row: &crate::database::dialect::Row| {
            Ok::<_, sqlx::Error>(SummarizedPiece {
                id: row.get(0)?,
                last_at: Timestamp::from_unix_nanos(row.get(1)?),
                summary: row.get(2)?,
            })
        };
        rows.iter().map(|row| piece(row).during(doing)).collect()
    }

    async fn is_traffic_indexed(&self) -> Result<bool, Fault> {
        let doing = "looking for traffic events without an index";
        let row = self
            .pool()
            .row(doing, events::TRAFFIC_UNINDEXED, &[])
            .await?;
        Ok(row.is_none())
    }

    /// The ends of the traffic log.
    pub async fn traffic_ends(&self) -> Result<TrafficEnds, Fault> {
        let doing = "reading the ends of the traffic log";
        let row = self.pool().row(doing, events::TRAFFIC_ENDS, &[]).await?;
        let ends = row.map_or(Ok((1, 0)), |row| Ok((row.get(0)?, row.get(1)?)));
        let (first, last) = ends.during(doing)?;
        Ok(TrafficEnds {
            first,
            settled: self.settled(last).await?,
            last,
        })
    }

    /// The ends of the log and of the hashes of removed pieces, to record them. Waits at most a second for the pieces that
    /// are being written.
    pub async fn hashed_traffic_ends(&self) -> Result<TrafficEnds, Fault> {
        let doing = "reading the ends of the traffic log";
        // The last position is read before the open transactions are.
        let row = self.pool().row(doing, events::TRAFFIC_HASHED_ENDS, &[]);
        let ends = row
            .await?
            .map_or(Ok((1, 0)), |row| Ok((row.get(0)?, row.get(1)?)));
        let (first, last) = ends.during(doing)?;
        let settled = self.await_settled(last).await?;
        Ok(TrafficEnds {
            first,
            settled,
            last,
        })
    }
}
