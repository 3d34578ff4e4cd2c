//! Hashes of the pieces of the traffic log: each piece, with the times of its first and last event, is a leaf, and the audit log has the root over each hour of them. So a
//! changed piece is found, although retention removes the oldest.
//!
//! A hash is stored with its piece. Those of the last pieces that were removed are kept, more of them than a record has pieces.
//! So of the removed pieces of a record, all hashes are there as long as one of its pieces is.
//!
//! Not here: when a record is made, and its event.

use std::sync::Arc;

use culvert_base::text::hex;
use culvert_base::{Fault, Timestamp};
use culvert_tlog::{Edge, TreeHash};

use super::Queue;
use super::batch::MissingHash;
use super::leaf;
use super::queue_log::QueueCommand;
use super::record_limits::{RECORD_MAX, STEP};
use crate::database::dialect::{Access, Arg, Row, Site, While};
use crate::database::pool::Pool;
use crate::database::statements::{HAS_META, events, meta};
use crate::database::store_url::StoreUrl;
use crate::database::{postgres, sqlite};

/// The first format with hashes.
const HASHED_FORMAT: i64 = 9;

/// How long after the last event of the first piece of a record the last event of another one may be. One that is earlier
/// ends no record: a connection keeps its time when the clock is set, so its events may be of any time.
const SPAN_MAX: i64 = 3_600_000_000_000;
/// How often a comparison begins again because retention removed pieces meanwhile.
const ATTEMPTS: u32 = 16;

/// Consecutive pieces of the traffic log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashedTraffic {
    /// The positions from `first` to `last` are covered, of which some may not exist.
    pub first: i64,
    /// The position of the last piece.
    pub last: i64,
    /// Number of pieces, with those that retention removed since they were written.
    pub count: u64,
    /// Time of the first event. Of removed pieces, the last event counts.
    pub from: Timestamp,
    /// Time of the last event.
    pub to: Timestamp,
    /// The root of the tree over the pieces, each with its times, in order (RFC 6962, section 2.1).
    pub root: TreeHash,
    /// The leaf of the last piece.
    pub last_leaf: TreeHash,
}

/// Whether the traffic log has a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceFound {
    /// It has this leaf.
    Leaf(TreeHash),
    /// Its stored hash is malformed.
    Malformed,
    /// Retention removed it, and its hash.
    Removed,
    /// It is missing, and a piece before it is there.
    Missing,
}

/// What became of the pieces of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficState {
    /// They are those of the record, or their hashes are, if retention removed some.
    Same {
        /// Whether some were removed.
        is_cut: bool,
    },
    /// Retention removed all.
    Removed,
    /// Some were removed, and not all of their hashes are there, so the others cannot be compared with the root. Retention
    /// keeps these hashes.
    Incomplete,
    /// A retained piece was changed, added or removed.
    Changed,
}

/// The pieces without a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnrecordedTraffic {
    /// Number of retained pieces.
    pub count: u64,
    /// The earliest last event of one of them, and the latest. A first event may be far older, on a connection from before the
    /// clock was set.
    pub times: Option<(Timestamp, Timestamp)>,
    /// The first piece that is not the one of its stored hash, or that is missing.
    pub changed: Option<i64>,
}

/// A piece without its body.
struct HashedPiece {
    id: i64,
    first_at: i64,
    last_at: i64,
    hash: TreeHash,
}

impl Queue {
    /// Whether the log has the piece at a position: its stored hash, or that of its body if it has none.
    pub async fn traffic_piece(&self, piece: i64) -> Result<PieceFound, Fault> {
        let doing = "reading a hash of the traffic log";
        let arguments = [Arg::Int(piece)];
        let row = self.pool().row(doing, events::TRAFFIC_HASH, &arguments);
        let text: Option<String> = row.await?.map(|row| row.get(0)).transpose().during(doing)?;
        if let Some(text) = text {
            return Ok(text.parse().map_or(PieceFound::Malformed, PieceFound::Leaf));
        }
        if let Some(leaf) = self.hash_of_body(piece).await? {
            return Ok(PieceFound::Leaf(leaf));
        }
        let row = self.pool().row(doing, events::TRAFFIC_ENDS, &[]).await?;
        let ends = row.map_or(Ok((1, 0)), |row| Ok((row.get(0)?, row.get(1)?)));
        let (first, last): (i64, i64) = ends.during(doing)?;
        Ok(match first > piece || last < first {
            true => PieceFound::Removed,
            false => PieceFound::Missing,
        })
    }

    /// The earliest last event of a piece after `after`, with removed ones; `None` if there is no piece.
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

    /// Hashes the pieces after `after` up to `last`, also those that retention removed meanwhile: at most about
    /// `pieces_max`, and of an hour. `None` if there are none. Stores the hashes of pieces that were written without one.
    /// A record has at most 16,384 pieces and a few hundred more, whatever `pieces_max` says.
    pub async fn hash_traffic(
        &self,
        after: i64,
        last: i64,
        pieces_max: u64,
    ) -> Result<Option<HashedTraffic>, Fault> {
        let mut edge = Edge::default();
        let (mut position, mut is_last) = (after, false);
        let (mut from, mut to) = (i64::MAX, i64::MIN);
        let (mut began, mut end) = (None, None);
        while !is_last && edge.size() < pieces_max.min(RECORD_MAX) {
            let pieces = self.hashed_pieces(position, last).await?;
            is_last = pieces.n_read < usize::try_from(STEP).unwrap_or(0);
            position = pieces.end;
            for piece in pieces.pieces {
                let began: i64 = *began.get_or_insert(piece.last_at);
                if piece.last_at.saturating_sub(began) > SPAN_MAX {
                    is_last = true;
                    break;
                }
                edge.push(piece.hash);
                (from, to) = (from.min(piece.first_at), to.max(piece.last_at));
                end = Some((piece.id, piece.hash));
            }
            // Only the root is needed.
            edge.take_changed();
        }
        Ok(end.map(|(last, last_leaf)| HashedTraffic {
            first: after.saturating_add(1),
            last,
            count: edge.size(),
            from: Timestamp::from_unix_nanos(from),
            to: Timestamp::from_unix_nanos(to),
            root: edge.root(),
            last_leaf,
        }))
    }

    async fn hashed_pieces(&self, after: i64, last: i64) -> Result<HashedPieces, Fault> {
        let doing = "reading hashes of the traffic log";
        let arguments = [Arg::Int(after), Arg::Int(last), Arg::Int(STEP)];
        let rows = self.pool().rows(doing, events::TRAFFIC_HASHED, &arguments);
        let rows = rows.await?;
        let (mut pieces, mut hashes, mut end) = (Vec::new(), Vec::new(), after);
        for row in &rows {
            let read = |row: &Row| {
                let hash: Option<String> = row.get(3)?;
                Ok::<_, sqlx::Error>((row.get(0)?, row.get(1)?, row.get(2)?, hash))
            };
            let (id, first_at, last_at, stored) = read(row).during(doing)?;
            end = id;
            let is_without = stored.is_none();
            let known = stored.and_then(|text| text.parse().ok());
            let found = match known {
                Some(hash) => Some(hash),
                None => self.hash_of_body(id).await?,
            };
            // Of a removed piece whose hash is malformed, nothing is known.
            let Some(hash) = found else { continue };
            if is_without {
                hashes.push(MissingHash {
                    piece: id,
                    last_at,
                    hash,
                });
            }
            pieces.push(HashedPiece {
                id,
                first_at,
                last_at,
                hash,
            });
        }
        if !hashes.is_empty() {
            let command = QueueCommand::HashTraffic { hashes };
            self.count("writing hashes of the traffic log", command)
                .await?;
        }
        Ok(HashedPieces {
            n_read: rows.len(),
            pieces,
            end,
        })
    }

    /// The hash of a piece that a node of an earlier version wrote, or whose stored hash is malformed. `None` if the piece
    /// is not there.
    async fn hash_of_body(&self, piece: i64) -> Result<Option<TreeHash>, Fault> {
        let doing = "reading a piece of the traffic log";
        let arguments = [
            Arg::Int(piece.saturating_sub(1)),
            Arg::Int(piece),
            Arg::Int(1),
        ];
        let row = self.pool().row(doing, events::TRAFFIC_WHOLE, &arguments);
        let row = row.await?;
        row.map(|row| leaf_of(&row)).transpose().during(doing)
    }
}

/// Some of the pieces of a record.
struct HashedPieces {
    /// Number of rows.
    n_read: usize,
    pieces: Vec<HashedPiece>,
    /// The last position that was read.
    end: i64,
}

/// The leaf of a piece that was read whole.
fn leaf_of(row: &Row) -> Result<TreeHash, sqlx::Error> {
    let body: Vec<u8> = row.get(3)?;
    Ok(leaf(row.get(1)?, row.get(2)?, &body))
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
        range: (i64, i64),
        count: u64,
        sha256: &str,
    ) -> Result<TrafficState, Fault> {
        let mut state = TrafficState::Removed;
        for _ in 0..ATTEMPTS {
            let (first_retained, last_retained) = self.ends().await?;
            if last_retained < first_retained || first_retained > range.1 {
                return Ok(TrafficState::Removed);
            }
            let compared = self.compare_from(first_retained, range, count, sha256);
            state = compared.await?;
            // Retention may have gone on meanwhile.
            if self.ends().await?.0 == first_retained {
                break;
            }
        }
        Ok(state)
    }

    async fn compare_from(
        &self,
        first_retained: i64,
        (first, last): (i64, i64),
        count: u64,
        sha256: &str,
    ) -> Result<TrafficState, Fault> {
        let is_cut = first < first_retained;
        let mut edge = Edge::default();
        for hash in self.removed(first, first_retained).await? {
            let Some(hash) = hash else {
                return Ok(TrafficState::Changed);
            };
            edge.push(hash);
        }
        let mut after = first.max(first_retained).saturating_sub(1);
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
        if edge.size() == count && hex(&edge.root().0) == sha256 {
            return Ok(TrafficState::Same { is_cut });
        }
        Ok(match is_cut && edge.size() < count {
            true => TrafficState::Incomplete,
            false => TrafficState::Changed,
        })
    }

    /// The pieces after `after`, compared with their stored hashes.
    pub async fn unrecorded(&self, after: i64) -> Result<UnrecordedTraffic, Fault> {
        let doing = "reading the traffic log";
        let arguments = [Arg::Int(after)];
        let row = self.pool.row(doing, events::TRAFFIC_MISSING, &arguments);
        let missing = row.await?.map_or(Ok(None), |row| row.get(0));
        let mut found = UnrecordedTraffic {
            count: 0,
            times: None,
            changed: missing.during(doing)?,
        };
        let mut position = after;
        loop {
            let arguments = [Arg::Int(position), Arg::Int(i64::MAX), Arg::Int(STEP)];
            let rows = self
                .pool
                .rows(doing, events::TRAFFIC_WITH_HASHES, &arguments);
            let rows = rows.await?;
            let Some(end) = rows.last() else {
                return Ok(found);
            };
            position = end.get(0).during(doing)?;
            for row in &rows {
                let read = |row: &Row| {
                    let hash: Option<String> = row.get(4)?;
                    Ok::<_, sqlx::Error>((row.get(0)?, row.get(2)?, leaf_of(row)?, hash))
                };
                let (id, last_at, leaf, hash) = read(row).during(doing)?;
                found.count += 1;
                let last_at = Timestamp::from_unix_nanos(last_at);
                let (from, to) = found.times.unwrap_or((last_at, last_at));
                found.times = Some((from.min(last_at), to.max(last_at)));
                if hash.is_some_and(|hash| hash != leaf.to_string()) {
                    let changed: i64 = found.changed.unwrap_or(id);
                    found.changed = Some(changed.min(id));
                }
            }
        }
    }

    /// Total bytes of the pieces and of captured messages, and those of the largest piece, as they are stored. The columns with
    /// sizes are not in the hashes, so they prove nothing.
    pub async fn bytes(&self) -> Result<(u64, u64), Fault> {
        let doing = "reading the size of the traffic log";
        let row = self.pool.row(doing, events::TRAFFIC_SIZE, &[]).await?;
        let sizes = row.map_or(Ok((0, 0)), |row| Ok((row.get(0)?, row.get(1)?)));
        let (pieces, largest): (i64, i64) = sizes.during(doing)?;
        let row = self.pool.row(doing, events::TRAFFIC_BODY_SIZE, &[]);
        let bodies = row.await?.map_or(Ok(0), |row| row.get(0));
        let bodies: i64 = bodies.during(doing)?;
        let [pieces, largest, bodies] =
            [pieces, largest, bodies].map(|bytes| u64::try_from(bytes).unwrap_or(0));
        Ok((pieces.saturating_add(bodies), largest))
    }

    /// The positions of the first and the last retained piece.
    pub async fn ends(&self) -> Result<(i64, i64), Fault> {
        let doing = "reading the ends of the traffic log";
        let row = self.pool.row(doing, events::TRAFFIC_ENDS, &[]).await?;
        let ends = row.map_or(Ok((1, 0)), |row| Ok((row.get(0)?, row.get(1)?)));
        ends.during(doing)
    }

    /// The hashes of the pieces from `first` on that were before `end`; `None` for a malformed one.
    async fn removed(&self, first: i64, end: i64) -> Result<Vec<Option<TreeHash>>, Fault> {
        let doing = "reading hashes of the traffic log";
        let arguments = [Arg::Int(first), Arg::Int(end)];
        let rows = self.pool.rows(doing, events::TRAFFIC_HASHES, &arguments);
        let rows = rows.await?;
        let hash = |row: &Row| {
            let text: String = row.get(0)?;
            Ok::<_, sqlx::Error>(text.parse().ok())
        };
        rows.iter().map(|row| hash(row).during(doing)).collect()
    }

    /// Closes its connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}
