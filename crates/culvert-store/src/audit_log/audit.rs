//! Reads the audit log: its extent, ranges, rows, and the verification of its hashes.
//!
//! The log is the outbox, whose rows are retained after their events were copied to the queue.
//! Reading never writes and never migrates, so a copy can be examined unchanged.

use std::fmt;
use std::sync::Arc;

use culvert_base::{Fault, Timestamp};

use crate::audit_log::beginning::Beginning;
use crate::audit_log::chain::{Content, Hash, Link};
use crate::commit::revision::Revision;
use crate::database::dialect::{Access, Arg, Connection, Row, Site, While};
use crate::database::pool::Pool;
use crate::database::statements::{HAS_META, meta, state};
use crate::database::store_url::StoreUrl;
use crate::database::{postgres, sqlite};

/// The audit log of one installation.
#[derive(Clone, Debug)]
pub struct AuditLog {
    pub(crate) pool: Arc<Pool>,
    /// Whether the database has a tree over the log.
    pub(crate) has_tree: bool,
}

/// One event of the log, as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    /// Position in commit order, without gaps.
    pub seq: i64,
    /// Id of the event, `ev_…`.
    pub id: String,
    /// Id of the account, `ac_…`.
    pub account: String,
    /// Event kind, such as `api_key_created.v0`.
    pub kind: String,
    /// Nanoseconds since the Unix epoch.
    pub happened_at: i64,
    /// The audience, as JSON: pairs of subscription and destination.
    pub audience: String,
    /// The event, JSON.
    pub body: String,
    /// Its hash in the chain. `None` until the next commit if a program without the chain wrote the
    /// row.
    pub hash: Option<String>,
}

/// The first and last positions of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The link of the last removed row, before the first retained one.
    pub anchor: Link,
    /// The link of the last row with a hash.
    pub head: Link,
    /// The last position assigned. It is beyond the head only if a program without the chain has
    /// written since.
    pub last: i64,
}

impl Extent {
    /// The number of retained events.
    pub fn events(&self) -> u64 {
        self.last.saturating_sub(self.anchor.seq).unsigned_abs()
    }

    /// A line that summarises a log whose retained rows and beginning were verified.
    pub fn summary(&self, beginning: Beginning) -> String {
        let mut line = format!(
            "{}: events={} first={} last={} head={}",
            match beginning {
                Beginning::Whole | Beginning::Announced => "the audit log is intact",
                Beginning::Unbound | Beginning::Unknown => "the retained audit log is intact",
            },
            self.events(),
            self.anchor.seq.saturating_add(1),
            self.last,
            self.head,
        );
        if self.head.seq < self.last {
            let n = self.last.saturating_sub(self.head.seq);
            line.push_str(&format!(" unchained={n}"));
        }
        let removed = self.anchor.seq;
        match beginning {
            Beginning::Whole => {}
            Beginning::Announced => line.push_str(&format!(" removed={removed}")),
            Beginning::Unbound => line.push_str(&format!(
                "\nunknown: whether retention removed exactly the events up to {removed}: the event that announces it has no hash, as in earlier versions"
            )),
            Beginning::Unknown => line.push_str(&format!(
                "\nunknown: who removed the events up to {removed}: no event announces it, as in earlier versions"
            )),
        }
        line
    }
}

/// A bound of a range, inclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// A time.
    At(Timestamp),
    /// The event with that id.
    Event(String),
}

/// A range of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first position; beyond `last` in an empty range.
    pub first: i64,
    /// The last position.
    pub last: i64,
    /// Positions are in commit order, which follows clocks only roughly, so events at these
    /// positions are also filtered by time. Events before this time are excluded.
    pub since: Option<Timestamp>,
    /// Events after this time are excluded.
    pub until: Option<Timestamp>,
}

impl Range {
    /// Whether a row at one of the positions is also within the times.
    pub fn holds(&self, happened_at: Timestamp) -> bool {
        self.since.is_none_or(|since| since <= happened_at)
            && self.until.is_none_or(|until| happened_at <= until)
    }
}

/// Why a range does not exist.
#[derive(Debug, thiserror::Error)]
pub enum RangeError {
    /// No event of the log has this id.
    #[error("the audit log has no event `{0}`")]
    Unknown(String),
    /// An internal failure.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A defect of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The first wrong position.
    pub seq: i64,
    /// The defect at this position.
    pub what: &'static str,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {} {}", self.seq, self.what)
    }
}

/// Why the verification of a log failed.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The log was changed.
    #[error("the audit log was changed: {0}")]
    Damaged(Damage),
    /// The chain does not contain a head that was noted earlier.
    #[error(
        "the audit log does not contain the head {0}: earlier events were changed, or the log was truncated"
    )]
    HeadMissing(String),
    /// The noted head is older than the retained rows.
    #[error("the head {0} is older than the retained events, which start after {1}")]
    HeadPruned(String, Link),
    /// Rows were removed although no retained event announces it.
    #[error(
        "the audit log was changed: events {first} to {last} are missing, and no `event_log_pruned` event accounts for all of them"
    )]
    Unannounced {
        /// The first position.
        first: i64,
        /// The last position.
        last: i64,
    },
    /// An internal failure.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A head that was noted earlier: `<position>:<hash>`, or only the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotedHead {
    /// Its position, if noted.
    pub seq: Option<i64>,
    /// The hash.
    pub hash: Hash,
}

impl fmt::Display for NotedHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seq {
            Some(seq) => write!(f, "{seq}:{}", self.hash),
            None => self.hash.fmt(f),
        }
    }
}

impl std::str::FromStr for NotedHead {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "a head must be `<position>:<64 hex digits>` or 64 hex digits";
        let (seq, hash) = match text.split_once(':') {
            Some((seq, hash)) => (Some(seq.parse().map_err(|_| WRONG)?), hash),
            None => (None, text),
        };
        let hash = hash.parse().map_err(|_| WRONG)?;
        Ok(Self { seq, hash })
    }
}

/// Rows per read; each is at most 256 KiB.
const ROWS: u32 = 128;
/// The first format with the chain.
const CHAINED_FORMAT: i64 = 2;
/// The first format with the tree as it is read here.
const TREE_FORMAT: i64 = 8;

impl AuditLog {
    /// Opens the log of the store at `url` for reading. Creates and migrates nothing.
    pub async fn open(url: &StoreUrl) -> Result<Self, Fault> {
        let site = match url {
            StoreUrl::Sqlite(path) => Site::Sqlite(sqlite::File::at(path)),
            StoreUrl::Postgres(url) => {
                Site::Postgres(postgres::Schema::at(url, crate::database::STATE.schema)?)
            }
        };
        let doing = &site.opening();
        let mut connection = site.connect(Access::Read).await.during(doing)?;
        let found = connection
            .row(site.spell(HAS_META), &[])
            .await
            .during(doing)?;
        let n_tables: i64 = found.map_or(Ok(0), |row| row.get(0)).during(doing)?;
        let format = match n_tables {
            0 => None,
            _ => connection
                .row(meta::GET, &[Arg::Text("format")])
                .await
                .during(doing)?
                .map(|row| row.get::<String>(0))
                .transpose()
                .during(doing)?,
        };
        connection.close().await;
        let format = format.and_then(|format| format.parse().ok()).unwrap_or(0);
        if format < CHAINED_FORMAT {
            return Err(Fault::bare(format!(
                "{doing}: the database has no hash-chained log yet; start `culvert serve` once to create it"
            )));
        }
        Ok(Self {
            pool: Arc::new(Pool::new(site, 1)),
            has_tree: format >= TREE_FORMAT,
        })
    }

    /// The current extent of the log.
    pub async fn extent(&self) -> Result<Extent, Fault> {
        let doing = "reading the extent of the audit log";
        let row = self
            .pool
            .row(doing, state::EXTENT, &[])
            .await?
            .ok_or_else(|| Fault::bare(format!("{doing}: the ledger is empty")))?;
        let read = |row: &Row| {
            Ok::<_, sqlx::Error>(Extent {
                last: row.get(0)?,
                head: link(row, 1)?,
                anchor: link(row, 3)?,
            })
        };
        read(&row).during(doing)
    }

    /// The rows after `after` up to `last`, at most `limit`, in commit order.
    pub async fn rows(&self, after: i64, last: i64, limit: u32) -> Result<Vec<AuditRow>, Fault> {
        let doing = "reading the audit log";
        let arguments = [Arg::Int(after), Arg::Int(last), Arg::Int(i64::from(limit))];
        let rows = self.pool.rows(doing, state::AUDIT, &arguments).await?;
        rows.iter()
            .map(|row| AuditRow::read(row).during(doing))
            .collect()
    }

    /// The hash of a retained row, or of the last removed one.
    pub async fn hash_at(&self, seq: i64) -> Result<Option<String>, Fault> {
        let anchor = self.extent().await?.anchor;
        if seq == anchor.seq {
            return Ok(Some(anchor.hash.to_string()));
        }
        let doing = "reading a hash of the audit log";
        let row = self
            .pool
            .row(doing, state::AUDIT_HASH, &[Arg::Int(seq)])
            .await?;
        row.map_or(Ok(None), |row| row.get(0)).during(doing)
    }

    /// The range between two inclusive bounds. Without bounds, it begins at the first retained
    /// event and ends at the current last one. Events of accounts other than `account` count as
    /// missing.
    pub async fn range(
        &self,
        from: Option<&Bound>,
        to: Option<&Bound>,
        account: Option<&str>,
    ) -> Result<Range, RangeError> {
        let extent = self.extent().await?;
        let mut range = Range {
            first: extent.anchor.seq.saturating_add(1),
            last: extent.last,
            since: None,
            until: None,
        };
        match from {
            None => {}
            Some(Bound::Event(id)) => range.first = self.position(id, account).await?,
            Some(Bound::At(at)) => {
                range.since = Some(*at);
                let first = self.edge(state::AUDIT_SINCE, *at).await?;
                range.first = first.unwrap_or_else(|| extent.last.saturating_add(1));
            }
        }
        match to {
            None => {}
            Some(Bound::Event(id)) => range.last = self.position(id, account).await?,
            Some(Bound::At(at)) => {
                range.until = Some(*at);
                let last = self.edge(state::AUDIT_UNTIL, *at).await?;
                range.last = last.unwrap_or(extent.anchor.seq).min(extent.last);
            }
        }
        Ok(range)
    }

    async fn edge(&self, sql: &'static str, at: Timestamp) -> Result<Option<i64>, Fault> {
        let doing = "finding a time in the audit log";
        let row = self
            .pool
            .row(doing, sql, &[Arg::Int(at.unix_nanos())])
            .await?;
        row.map_or(Ok(None), |row| row.get(0)).during(doing)
    }

    async fn position(&self, id: &str, account: Option<&str>) -> Result<i64, RangeError> {
        let doing = "finding an event in the audit log";
        let row = self
            .pool
            .row(doing, state::AUDIT_EVENT, &[Arg::Text(id)])
            .await?;
        let found: Option<(i64, String)> = row
            .map(|row| Ok((row.get(0)?, row.get(1)?)))
            .transpose()
            .during(doing)?;
        match found {
            Some((seq, owner)) if account.is_none_or(|account| account == owner) => Ok(seq),
            _ => Err(RangeError::Unknown(id.to_owned())),
        }
    }

    /// Verifies the whole log. Returns its extent if every row matches its hash and, with a noted
    /// head, the chain contains that head.
    pub async fn verify(&self, noted: Option<NotedHead>) -> Result<Extent, AuditError> {
        let mut extent = self.extent().await?;
        loop {
            let walked = self.walk(&extent, noted).await;
            let now = self.extent().await?;
            // Rows that were pruned during the verification are not a defect.
            if walked.is_ok() || now.anchor == extent.anchor {
                return walked.map(|()| extent);
            }
            extent = now;
        }
    }

    async fn walk(&self, extent: &Extent, noted: Option<NotedHead>) -> Result<(), AuditError> {
        let damaged = |seq, what| Err(AuditError::Damaged(Damage { seq, what }));
        let is_noted = |noted: NotedHead, link: Link| {
            noted.hash == link.hash && noted.seq.is_none_or(|seq| seq == link.seq)
        };
        let mut link = extent.anchor;
        let mut is_found = noted.is_none_or(|noted| is_noted(noted, link));
        if extent.head.seq < link.seq || extent.last < extent.head.seq {
            return damaged(extent.head.seq, "is not at the position in the ledger");
        }
        let mut last = link.seq;
        loop {
            let rows = self.rows(last, extent.last, ROWS).await?;
            if rows.is_empty() {
                break;
            }
            for row in rows {
                let expected = last.saturating_add(1);
                if row.seq != expected {
                    return damaged(expected, "is missing");
                }
                last = row.seq;
                if row.seq > extent.head.seq {
                    // The row has no hash yet.
                    continue;
                }
                link = link.next(row.seq, row.content());
                match &row.hash {
                    None => return damaged(row.seq, "has no hash"),
                    Some(hash) if *hash != link.hash.to_string() => {
                        return damaged(row.seq, "does not match its hash");
                    }
                    Some(_) => is_found |= noted.is_some_and(|noted| is_noted(noted, link)),
                }
            }
        }
        if last < extent.last {
            return damaged(last.saturating_add(1), "is missing");
        }
        if link != extent.head {
            return damaged(extent.head.seq, "does not match the head of the chain");
        }
        if let Some(inserted) = self.rows(extent.last, i64::MAX, 1).await?.first()
            && inserted.seq > self.extent().await?.last
        {
            return damaged(inserted.seq, "was inserted without a commit");
        }
        match noted {
            Some(noted) if !is_found => Err(match noted.seq {
                Some(seq) if seq < extent.anchor.seq => {
                    AuditError::HeadPruned(noted.to_string(), extent.anchor)
                }
                _ => AuditError::HeadMissing(noted.to_string()),
            }),
            _ => Ok(()),
        }
    }

    /// The oldest rows that happened before `cutoff`; `None` if there are none. Reads at most `limit` rows and none
    /// beyond `passed`, the last position that every reader has passed.
    pub async fn expired(
        &self,
        cutoff: Timestamp,
        passed: i64,
        limit: u32,
    ) -> Result<Option<Expired>, Fault> {
        let doing = "looking for events to prune";
        let arguments = [Arg::Int(passed), Arg::Int(i64::from(limit))];
        let mut expired = None;
        for row in self
            .pool
            .rows(doing, state::AUDIT_TIMES, &arguments)
            .await?
        {
            let (seq, happened_at): (i64, i64) =
                (row.get(0).during(doing)?, row.get(1).during(doing)?);
            if happened_at >= cutoff.unix_nanos() {
                break;
            }
            expired = Some(Expired(seq));
        }
        Ok(expired)
    }

    /// Closes the connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// The rows of the audit log up to a position, which no reader needs any more: see [`AuditLog::expired`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired(pub(crate) i64);

/// Documents that decide which rows are removed, as of when they were read. Nothing is removed if one of them was written
/// since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deciding {
    /// Their kind.
    pub kind: &'static str,
    /// The revision of the store before they were read.
    pub as_of: Revision,
}

impl Deciding {
    /// Whether one was written since, or may have been, in a transaction of this epoch.
    pub(crate) async fn is_outdated(
        self,
        connection: &mut Connection,
        epoch: u64,
    ) -> Result<bool, sqlx::Error> {
        if self.as_of.epoch != epoch {
            return Ok(true);
        }
        let arguments = [Arg::Text(self.kind), Arg::Int(self.as_of.number)];
        let written = connection.rows(state::CHANGED, &arguments).await?;
        Ok(!written.is_empty())
    }
}

impl Expired {
    /// The last position.
    pub fn up_to(self) -> i64 {
        self.0
    }
}

impl AuditRow {
    /// From a row of `AUDIT`.
    pub(crate) fn read(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            seq: row.get(0)?,
            id: row.get(1)?,
            account: row.get(2)?,
            kind: row.get(3)?,
            happened_at: row.get(4)?,
            audience: row.get(5)?,
            body: row.get(6)?,
            hash: row.get(7)?,
        })
    }

    pub(crate) fn content(&self) -> Content<'_> {
        Content {
            id: &self.id,
            account: &self.account,
            kind: &self.kind,
            happened_at: self.happened_at,
            audience: &self.audience,
            body: &self.body,
        }
    }
}

/// Reads a link from two columns.
pub(crate) fn link(row: &Row, at: usize) -> Result<Link, sqlx::Error> {
    let hash: String = row.get(at + 1)?;
    Ok(Link {
        seq: row.get(at)?,
        hash: hash
            .parse()
            .map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
    })
}
