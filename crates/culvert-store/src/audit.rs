//! The audit log, to be read: its extent, ranges of it, its rows, and whether anybody touched it.
//!
//! The log is the outbox, kept after every event was copied to the queue. Reading never writes, not
//! even a migration, so that a copy can be looked at as it is.

use std::fmt;
use std::sync::Arc;

use culvert_base::{Fault, Timestamp};

use crate::chain::{Content, Hash, Link};
use crate::dialect::{Access, Arg, Row, Site, While};
use crate::pool::Pool;
use crate::statements::{HAS_META, meta, state};
use crate::store_url::StoreUrl;
use crate::{postgres, sqlite};

/// The audit log of one installation.
#[derive(Clone, Debug)]
pub struct AuditLog {
    pub(crate) pool: Arc<Pool>,
}

/// One event of the log, as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    /// Position in commit order, without gaps.
    pub seq: i64,
    /// `ev_…`.
    pub id: String,
    /// `ac_…`.
    pub account: String,
    /// Such as `api_key_created.v0`.
    pub kind: String,
    /// Nanoseconds since 1970.
    pub happened_at: i64,
    /// JSON: pairs of subscription and destination that it was for.
    pub audience: String,
    /// The event, JSON.
    pub body: String,
    /// Its link of the chain; none for a row whose writer knew of no chain, until the next write.
    pub hash: Option<String>,
}

/// Where the log begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The row before the first that is kept.
    pub anchor: Link,
    /// The last row with a hash.
    pub head: Link,
    /// The last position given out. Beyond the head only where a program that knows of no chain has
    /// written since.
    pub last: i64,
}

impl Extent {
    /// Events kept.
    pub fn events(&self) -> u64 {
        self.last.saturating_sub(self.anchor.seq).unsigned_abs()
    }
}

/// One end of a range. It belongs to the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// That moment.
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
    /// Positions are in commit order, which clocks follow only roughly: of the positions, what
    /// happened no earlier,
    pub since: Option<Timestamp>,
    /// and no later.
    pub until: Option<Timestamp>,
}

impl Range {
    /// Whether a row at one of the positions is in the range.
    pub fn holds(&self, happened_at: Timestamp) -> bool {
        self.since.is_none_or(|since| since <= happened_at)
            && self.until.is_none_or(|until| happened_at <= until)
    }
}

/// Why there is no such range.
#[derive(Debug, thiserror::Error)]
pub enum RangeError {
    /// No event of the log has this id.
    #[error("the audit log has no event `{0}`")]
    Unknown(String),
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A place where the log is not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The first position that is wrong.
    pub seq: i64,
    /// What is wrong there.
    pub what: &'static str,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {} {}", self.seq, self.what)
    }
}

/// Why a log was not found whole.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// Somebody touched it.
    #[error("the audit log was changed: {0}")]
    Damaged(Damage),
    /// It does not lead to a head that was noted earlier.
    #[error(
        "the audit log does not contain the head {0}: earlier events were changed, or the log was truncated"
    )]
    HeadMissing(String),
    /// The head that was noted is older than what is kept.
    #[error("the head {0} is older than the retained events, which start after {1}")]
    HeadPruned(String, Link),
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// A head as noted earlier: `<position>:<hash>`, or the hash alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotedHead {
    /// Where it stood, if that was noted.
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

/// Rows read at once; each at most 256 KiB.
const ROWS: u32 = 128;
/// The first format with a chain.
const CHAINED_FORMAT: i64 = 2;

impl AuditLog {
    /// Opens the log of the store at `url` for reading. Makes nothing and migrates nothing.
    pub async fn open(url: &StoreUrl) -> Result<Self, Fault> {
        let doing = "opening the audit log";
        let site = match url {
            StoreUrl::Sqlite(path) => Site::Sqlite(sqlite::File::at(path)),
            StoreUrl::Postgres(url) => {
                Site::Postgres(postgres::Schema::at(url, crate::database::STATE.schema)?)
            }
        };
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
        })
    }

    /// Where it begins and ends now.
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

    /// The hash of a row that is kept, or of the last that is not.
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

    /// The range between two bounds, both inside; from the first event kept, to the last there is
    /// now. Events of other accounts than `account` are as good as absent.
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

    /// Walks the whole log. Its extent, if every row is what was written and, where a head was noted
    /// earlier, the log still leads there.
    pub async fn verify(&self, noted: Option<NotedHead>) -> Result<Extent, AuditError> {
        let mut extent = self.extent().await?;
        loop {
            let walked = self.walk(&extent, noted).await;
            let now = self.extent().await?;
            // What was pruned meanwhile is no damage.
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
                    // Not chained yet: there is nothing to compare with.
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
        if let Some(stranger) = self.rows(extent.last, i64::MAX, 1).await?.first()
            && stranger.seq > self.extent().await?.last
        {
            return damaged(stranger.seq, "was inserted without a commit");
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

    /// The last position of the oldest rows that happened before `cutoff`, looking at no more than
    /// `limit` rows and none beyond `last`; `None` if there are none.
    pub async fn older(
        &self,
        cutoff: Timestamp,
        last: i64,
        limit: u32,
    ) -> Result<Option<i64>, Fault> {
        let doing = "looking for events to prune";
        let arguments = [Arg::Int(last), Arg::Int(i64::from(limit))];
        let mut older = None;
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
            older = Some(seq);
        }
        Ok(older)
    }

    /// Closes its connections.
    pub async fn close(&self) {
        self.pool.close().await;
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

/// A link from two columns.
pub(crate) fn link(row: &Row, at: usize) -> Result<Link, sqlx::Error> {
    let hash: String = row.get(at + 1)?;
    Ok(Link {
        seq: row.get(at)?,
        hash: hash
            .parse()
            .map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
    })
}
