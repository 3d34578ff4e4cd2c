//! Hashes of the pieces of the traffic log: each piece, with the times of its first and last event, is a leaf, and the audit log has the root over each hour of them. So a
//! changed piece is found, although retention removes the oldest.
//!
//! A hash is stored with its piece, and outlives it by two hours: until then a record may cover both removed and retained
//! pieces.
//!
//! Not here: when a record is made, and its event.

use std::sync::Arc;

use culvert_base::text::hex;
use culvert_base::{Fault, Timestamp};
use culvert_tlog::{Edge, TreeHash};

use super::Queue;
use super::leaf;
use crate::database::dialect::{Access, Arg, Row, Site, While};
use crate::database::pool::Pool;
use crate::database::statements::{HAS_META, events, meta};
use crate::database::store_url::StoreUrl;
use crate::database::{postgres, sqlite};

/// Pieces read in one step.
const STEP: i64 = 256;
/// The first format with hashes.
const HASHED_FORMAT: i64 = 9;

/// Consecutive pieces of the traffic log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashedTraffic {
    /// The positions from `first` to `last` are covered, of which some may not exist.
    pub first: i64,
    /// The last position.
    pub last: i64,
    /// Number of pieces.
    pub count: u64,
    /// Time of the first event.
    pub from: Timestamp,
    /// Time of the last event.
    pub to: Timestamp,
    /// The root of the tree over the pieces, each with its times, in order (RFC 6962, section 2.1).
    pub root: TreeHash,
}

/// What became of the pieces of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficState {
    /// They are those of the record, or their hashes are, if retention removed some.
    Same,
    /// Retention removed all.
    Removed,
    /// Retention removed some and their hashes, so the others cannot be compared with the root.
    Incomplete,
    /// A retained piece was changed, added or removed.
    Changed,
}

/// A piece without its body.
struct HashedPiece {
    id: i64,
    first_at: i64,
    last_at: i64,
    hash: TreeHash,
}

impl Queue {
    /// The hash of the piece at a position; `None` if it is not known, or not any more.
    pub async fn traffic_hash(&self, piece: i64) -> Result<Option<TreeHash>, Fault> {
        let doing = "reading a hash of the traffic log";
        let arguments = [Arg::Int(piece)];
        let row = self.pool().row(doing, events::TRAFFIC_HASH, &arguments);
        let text: Option<String> = row.await?.map(|row| row.get(0)).transpose().during(doing)?;
        text.map(|text| hash_of(&text)).transpose()
    }

    /// The earliest time of an event in the pieces after `after`; `None` if there is no piece.
    pub async fn traffic_begins_at(&self, after: i64) -> Result<Option<Timestamp>, Fault> {
        let doing = "reading the beginning of the traffic log";
        let arguments = [Arg::Int(after)];
        let row = self
            .pool()
            .row(doing, events::TRAFFIC_BEGINS_AT, &arguments);
        let at = row.await?.map(|row| row.get(0)).transpose();
        let at: Option<Option<i64>> = at.during(doing)?;
        Ok(at.flatten().map(Timestamp::from_unix_nanos))
    }

    /// Hashes the pieces after `after` up to `last`, at most about `pieces_max`. `None` if there are none.
    pub async fn hash_traffic(
        &self,
        after: i64,
        last: i64,
        pieces_max: u64,
    ) -> Result<Option<HashedTraffic>, Fault> {
        let (mut edge, mut position) = (Edge::default(), after);
        let (mut from, mut to) = (i64::MAX, i64::MIN);
        while position < last && edge.size() < pieces_max {
            let pieces = self.hashed_pieces(position, last).await?;
            // A position without a piece never gets one.
            position = match pieces.last() {
                Some(piece) if pieces.len() == usize::try_from(STEP).unwrap_or(0) => piece.id,
                _ => last,
            };
            for piece in pieces {
                edge.push(piece.hash);
                (from, to) = (from.min(piece.first_at), to.max(piece.last_at));
            }
            // Only the root is needed.
            edge.take_changed();
        }
        Ok((edge.size() > 0).then(|| HashedTraffic {
            first: after.saturating_add(1),
            last: position,
            count: edge.size(),
            from: Timestamp::from_unix_nanos(from),
            to: Timestamp::from_unix_nanos(to),
            root: edge.root(),
        }))
    }

    async fn hashed_pieces(&self, after: i64, last: i64) -> Result<Vec<HashedPiece>, Fault> {
        let doing = "reading hashes of the traffic log";
        let arguments = [Arg::Int(after), Arg::Int(last), Arg::Int(STEP)];
        let rows = self.pool().rows(doing, events::TRAFFIC_HASHED, &arguments);
        let mut pieces = Vec::new();
        for row in rows.await? {
            let read = |row: &Row| {
                let hash: Option<String> = row.get(3)?;
                Ok::<_, sqlx::Error>((row.get(0)?, row.get(1)?, row.get(2)?, hash))
            };
            let (id, first_at, last_at, hash) = read(&row).during(doing)?;
            let hash = match hash.and_then(|text| text.parse().ok()) {
                Some(hash) => hash,
                None => self.hash_of_body(id).await?,
            };
            pieces.push(HashedPiece {
                id,
                first_at,
                last_at,
                hash,
            });
        }
        Ok(pieces)
    }

    /// The hash of a piece that a node of an earlier version wrote, or whose stored hash is malformed.
    async fn hash_of_body(&self, piece: i64) -> Result<TreeHash, Fault> {
        let doing = "reading a piece of the traffic log";
        let arguments = [Arg::Int(piece - 1), Arg::Int(piece), Arg::Int(1)];
        let row = self.pool().row(doing, events::TRAFFIC_WHOLE, &arguments);
        let row = row
            .await?
            .ok_or_else(|| Fault::bare(format!("{doing}: it was removed meanwhile")))?;
        leaf_of(&row).during(doing)
    }
}

/// The leaf of a piece that was read whole.
fn leaf_of(row: &Row) -> Result<TreeHash, sqlx::Error> {
    let body: Vec<u8> = row.get(3)?;
    Ok(leaf(row.get(1)?, row.get(2)?, &body))
}

fn hash_of(text: &str) -> Result<TreeHash, Fault> {
    let hash = text.parse();
    hash.map_err(|error| Fault::new("reading a hash of the traffic log", error))
}

/// The traffic log of an installation, for comparison with records of it. Writes nothing.
#[derive(Debug)]
pub struct TrafficLog {
    pool: Arc<Pool>,
}

impl TrafficLog {
    /// Opens the log of the installation whose store is at `url`. `None` if it has none, or none with hashes yet.
    pub async fn open(url: &StoreUrl) -> Result<Option<Self>, Fault> {
        let site = match url {
            StoreUrl::Sqlite(path) => {
                let path = path.with_file_name(super::EVENTS.file.unwrap_or_default());
                if !path.is_file() {
                    return Ok(None);
                }
                Site::Sqlite(sqlite::File::at(&path))
            }
            StoreUrl::Postgres(url) => {
                Site::Postgres(postgres::Schema::at(url, super::EVENTS.schema)?)
            }
        };
        let doing = &site.opening();
        let mut connection = site.connect(Access::Read).await.during(doing)?;
        let found = connection.row(site.spell(HAS_META), &[]).await;
        let n_tables: i64 = found
            .during(doing)?
            .map_or(Ok(0), |row| row.get(0))
            .during(doing)?;
        let mut format = 0;
        if n_tables > 0 {
            let row = connection.row(meta::GET, &[Arg::Text("format")]).await;
            let text: Option<String> = row
                .during(doing)?
                .map(|row| row.get(0))
                .transpose()
                .during(doing)?;
            format = text.and_then(|text| text.parse().ok()).unwrap_or(0);
        }
        connection.close().await;
        Ok((format >= HASHED_FORMAT).then(|| Self {
            pool: Arc::new(Pool::new(site, 1)),
        }))
    }

    /// Compares the pieces with those of a record: their number, and the root over them in hexadecimal digits.
    pub async fn compare(
        &self,
        (first, last): (i64, i64),
        count: u64,
        sha256: &str,
    ) -> Result<TrafficState, Fault> {
        let (first_retained, last_retained) = self.ends().await?;
        let is_empty = last_retained < first_retained;
        if is_empty || first_retained > last {
            return Ok(TrafficState::Removed);
        }
        let mut edge = Edge::default();
        let removed = self.removed(first, first_retained.min(last + 1)).await?;
        for hash in removed {
            edge.push(hash);
        }
        let mut after = first.max(first_retained) - 1;
        loop {
            let doing = "reading the traffic log";
            let arguments = [Arg::Int(after), Arg::Int(last), Arg::Int(STEP)];
            let rows = self.pool.rows(doing, events::TRAFFIC_WHOLE, &arguments);
            let rows = rows.await?;
            let Some(end) = rows.last() else { break };
            after = end.get(0).during(doing)?;
            for row in &rows {
                edge.push(leaf_of(row).during(doing)?);
            }
            edge.take_changed();
        }
        // Retention may have gone on meanwhile.
        let (first_now, last_now) = self.ends().await?;
        if edge.size() == count && hex(&edge.root().0) == sha256 {
            return Ok(TrafficState::Same);
        }
        let is_cut = first < first_now && edge.size() < count;
        Ok(match is_cut {
            _ if last_now < first_now || first_now > last => TrafficState::Removed,
            true => TrafficState::Incomplete,
            false => TrafficState::Changed,
        })
    }

    /// The positions of the first and the last retained piece.
    pub async fn ends(&self) -> Result<(i64, i64), Fault> {
        let doing = "reading the ends of the traffic log";
        let row = self.pool.row(doing, events::TRAFFIC_ENDS, &[]).await?;
        let ends = row.map_or(Ok((1, 0)), |row| Ok((row.get(0)?, row.get(1)?)));
        ends.during(doing)
    }

    /// The hashes of the pieces from `first` on that were before `end`.
    async fn removed(&self, first: i64, end: i64) -> Result<Vec<TreeHash>, Fault> {
        let doing = "reading hashes of the traffic log";
        let arguments = [Arg::Int(first), Arg::Int(end)];
        let rows = self.pool.rows(doing, events::TRAFFIC_HASHES, &arguments);
        let rows = rows.await?;
        rows.iter()
            .map(|row| hash_of(&row.get::<String>(0).during(doing)?))
            .collect()
    }

    /// Closes its connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}
