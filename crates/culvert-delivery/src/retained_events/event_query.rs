//! Pages of retained events, for queries: of the audit log and of the traffic log, merged by time.
//!
//! Each log is read in its own order, so no event is skipped or repeated if clocks differ. Of the next events of both
//! logs, the earlier one comes first (newest first: the later one). A cursor contains the read position of each log, so
//! consecutive pages are complete even if events are written meanwhile.
//!
//! A log may lose its last events: in a fail-over to a standby without them, or when a backup is restored. A cursor behind
//! its end then continues at its end, oldest first. Otherwise a reader would wait until as many events are written again,
//! and miss them.
//!
//! Several nodes write their traffic concurrently, each about once a second. So traffic is sorted by time within a
//! page, but a follower gets it in the order of the log.
//!
//! Of the traffic log, only those pieces are read whose summary may have what the search wants, and only those events are
//! encoded that may match its filter.
//!
//! A page costs at most [`WORK_MAX`] and [`TIME_MAX`], however few events it finds, and has at most [`PAGE_BYTES_MAX`].
//! A page that ends early has a cursor from which the next one continues.
//!
//! Not here: how many searches run concurrently (`search_turns`), which kinds a caller may read, and the form of pages
//! in the API (control).

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use culvert_base::{Fault, Timestamp};
use culvert_events::{Family, LogFilter, Logged, Summary, kinds};
use culvert_store::{AuditKey, LinkedRow, Order, Piece, event_names};
use tokio::time::Instant;

use crate::plane::Plane;
use crate::retained_events::retained;
use crate::retained_events::stored_piece::{StoredEvent, StoredPiece};

/// Maximum work of one page; a unit is about a nanosecond.
const WORK_MAX: u64 = 250_000_000;
/// Maximum time of one page, for slow disks.
const TIME_MAX: Duration = Duration::from_secs(2);
/// Work of examining an event, of each of its bytes, of each byte that a filter reads, and of each cost unit of a
/// filter.
const EVENT_WORK: u64 = 500;
const BYTE_WORK: u64 = 2;
const FILTER_BYTE_WORK: u64 = 6;
const FILTER_UNIT_WORK: u64 = 10;
/// Work after which other tasks of the thread run.
const TURN_WORK: u64 = 1_000_000;
/// Work of reading a summary.
const SUMMARY_WORK: u64 = 3_000;
/// Maximum bytes of events in one page. The last event may exceed it.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Rows of the audit log in one read.
const ROWS: u32 = 64;
/// Summaries of pieces in one read: the first time, and at most. Each read without a wanted piece is followed by a larger
/// one.
const SUMMARIES_FIRST: u32 = 8;
const SUMMARIES_MAX: u32 = 1024;

/// A search of the retained events.
#[derive(Debug)]
pub struct EventQuery {
    /// The owner of the search. Each owner has a share of all searches.
    pub owner: String,
    /// Only events of this account.
    pub account: String,
    /// Only events of these kinds; `None` for every kind.
    pub kinds: Option<Vec<String>>,
    /// Only events that match this filter.
    pub filter: Option<LogFilter>,
    /// Only events at this time or later.
    pub since: Option<Timestamp>,
    /// Only events at this time or earlier.
    pub until: Option<Timestamp>,
    /// Only audit events about the object with this id, or traffic of the endpoint with it.
    pub object: Option<String>,
    /// Only audit events of the principal with this id.
    pub actor: Option<String>,
    /// The direction.
    pub order: Order,
    /// The cursor to continue from; `None` for the beginning.
    pub from: Option<Cursor>,
    /// Maximum number of events of a page.
    pub limit: usize,
    /// Whether each event has its own cursor to continue from. Otherwise the search continues after the whole page,
    /// whose traffic is sorted by time.
    pub is_followed: bool,
}

/// The read position in both logs, for one direction. Newest first, the events before the positions remain; oldest
/// first, those after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    order: Order,
    /// The last row that was read in the audit log, or the bound at which reading begins.
    audit: i64,
    /// The last piece that was read in the traffic log.
    piece: i64,
    /// The position in that piece. Newest first, the events below this index remain; oldest first, those from it on.
    index: u32,
}

/// Events that were found.
#[derive(Debug)]
pub struct EventPage {
    /// In the requested order.
    pub events: Vec<LoggedEvent>,
    /// The cursor to continue from.
    pub next: Cursor,
    /// Whether both logs were read to their end.
    pub is_end: bool,
    /// How far the logs were searched, from the beginning of the first page.
    pub searched: Searched,
}

/// How far a search came.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Searched {
    /// The time that it reached; `None` if no time is known, and at the end.
    pub to: Option<Timestamp>,
    /// The searched share of the positions in the logs, 0 to 1. The log that is further behind counts.
    pub share: f64,
}

/// An event with its metadata in the log.
#[derive(Clone, Debug)]
pub struct LoggedEvent {
    /// The envelope, exactly as stored.
    pub envelope: String,
    /// `ep_…` of the endpoint that had the traffic.
    pub endpoint: Option<String>,
    /// Its position in the audit log; `None` for traffic.
    pub audit: Option<AuditPlace>,
    /// The cursor to continue after this event.
    pub cursor: Cursor,
}

/// The place of an audit event in the chain.
#[derive(Clone, Debug)]
pub struct AuditPlace {
    /// Position in commit order, without gaps.
    pub position: i64,
    /// Its hash; `None` until the next write, if a program without the chain wrote it.
    pub hash: Option<String>,
    /// The hash of the previous event.
    pub previous: Option<String>,
    /// Nanoseconds since 1970.
    pub happened_at: i64,
    /// Pairs of subscription and destination, JSON, exactly as stored.
    pub audience: String,
}

/// The text is not a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cursor is malformed")]
pub struct NotACursor;

impl Cursor {
    /// The direction of the cursor.
    pub fn order(&self) -> Order {
        self.order
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match self.order {
            Order::NewestFirst => 'n',
            Order::OldestFirst => 'o',
        };
        let Self {
            audit,
            piece,
            index,
            ..
        } = self;
        write!(f, "{order}{audit}-{piece}-{index}")
    }
}

impl FromStr for Cursor {
    type Err = NotACursor;

    fn from_str(text: &str) -> Result<Self, NotACursor> {
        let order = match text.as_bytes().first() {
            Some(b'n') => Order::NewestFirst,
            Some(b'o') => Order::OldestFirst,
            _ => return Err(NotACursor),
        };
        let mut parts = text.get(1..).unwrap_or_default().split('-');
        let mut part = || {
            let digits = parts
                .next()
                .filter(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
            digits.ok_or(NotACursor)
        };
        let (audit, piece, index) = (part()?, part()?, part()?);
        let is_end = parts.next().is_none();
        let cursor = Self {
            order,
            audit: audit.parse().map_err(|_| NotACursor)?,
            piece: piece.parse().map_err(|_| NotACursor)?,
            index: index.parse().map_err(|_| NotACursor)?,
        };
        is_end.then_some(cursor).ok_or(NotACursor)
    }
}

/// The end of both logs, where following begins.
pub(crate) async fn end(plane: &Plane) -> Result<Cursor, Fault> {
    let ends = plane.queue.traffic_ends().await?;
    Ok(Cursor {
        order: Order::OldestFirst,
        audit: plane.store.audit_log().extent().await?.last,
        piece: ends.settled,
        index: u32::MAX,
    })
}

/// A page of events that match.
pub(crate) async fn page(plane: &Plane, query: &EventQuery) -> Result<EventPage, Fault> {
    page_within(plane, query, WORK_MAX).await
}

/// Like [`page`], with a limit of `work_max`. The first step is always taken.
pub(crate) async fn page_within(
    plane: &Plane,
    query: &EventQuery,
    work_max: u64,
) -> Result<EventPage, Fault> {
    let mut budget = Budget::new(work_max);
    let mut audit = AuditSource::open(plane, query).await?;
    let mut traffic = TrafficSource::open(plane, query).await?;
    let (mut events, mut bytes) = (Vec::new(), 0);
    let is_end = loop {
        let is_filled = audit.fill(plane, query, &mut budget).await?
            && traffic.fill(plane, query, &mut budget).await?;
        if !is_filled {
            break false;
        }
        let is_audit = match (&audit.found, &traffic.found) {
            (None, None) => break true,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(audit), Some(traffic)) => comes_first(query.order, audit.at, traffic.at),
        };
        if events.len() >= query.limit || bytes >= PAGE_BYTES_MAX {
            break false;
        }
        let found = match is_audit {
            true => audit.take(),
            false => traffic.take(),
        };
        let Some(found) = found else { continue };
        bytes += found.envelope.len();
        let event = LoggedEvent {
            envelope: found.envelope,
            endpoint: found.endpoint,
            audit: found.audit,
            cursor: cursor(query.order, &audit, &traffic),
        };
        events.push((found.at, event));
    };
    if !query.is_followed {
        events = by_time(query.order, events);
    }
    Ok(EventPage {
        next: cursor(query.order, &audit, &traffic),
        events: events.into_iter().map(|(_, event)| event).collect(),
        is_end,
        searched: match is_end {
            true => Searched {
                to: None,
                share: 1.0,
            },
            false => searched(query.order, &audit, &traffic),
        },
    })
}

fn searched(order: Order, audit: &AuditSource, traffic: &TrafficSource) -> Searched {
    let of_audit = match audit.is_at_end() {
        true => 1.0,
        false => {
            let at = audit
                .found
                .as_ref()
                .map_or(audit.passed, |found| found.passed.0);
            share(order, audit.whole, at)
        }
    };
    let of_traffic = match traffic.is_at_end() {
        true => 1.0,
        false => {
            let at = traffic
                .found
                .as_ref()
                .map_or(traffic.passed, |found| found.passed);
            share(order, traffic.whole, at.0)
        }
    };
    let reached = |found: &Option<Found>, reached, is_at_end: bool| {
        let at = found.as_ref().map(|found| found.at).or(reached);
        at.filter(|_| !is_at_end)
    };
    let of_both = [
        reached(&audit.found, audit.reached, audit.is_at_end()),
        reached(&traffic.found, traffic.reached, traffic.is_at_end()),
    ];
    let times = of_both.into_iter().flatten();
    Searched {
        to: match order {
            Order::NewestFirst => times.max(),
            Order::OldestFirst => times.min(),
        },
        share: of_audit.min(of_traffic).min(SHARE_MAX),
    }
}

/// The share of a search that is not at its end, at most.
const SHARE_MAX: f64 = 0.999;

/// The share of the positions from `first` to `last` that a search which is at a position has behind it.
fn share(order: Order, (first, last): (i64, i64), at: i64) -> f64 {
    let n_all = last.saturating_sub(first).saturating_add(1).max(1);
    let n_passed = match order {
        Order::NewestFirst => last.saturating_add(1).saturating_sub(at),
        Order::OldestFirst => at.saturating_sub(first),
    };
    let share = n_passed as f64 / n_all as f64;
    share.clamp(0.0, 1.0)
}

/// Whether an audit event comes before a traffic event.
fn comes_first(order: Order, audit: Timestamp, traffic: Timestamp) -> bool {
    match order {
        Order::NewestFirst => audit > traffic,
        Order::OldestFirst => audit <= traffic,
    }
}

/// Sorts the traffic among the events by time. Audit events keep the order of their log.
fn by_time(order: Order, events: Vec<(Timestamp, LoggedEvent)>) -> Vec<(Timestamp, LoggedEvent)> {
    let is_audit = |(_, event): &(Timestamp, LoggedEvent)| event.audit.is_some();
    let (audit, mut traffic): (Vec<_>, Vec<_>) = events.into_iter().partition(is_audit);
    traffic.sort_by(|(a, _), (b, _)| match order {
        Order::NewestFirst => b.cmp(a),
        Order::OldestFirst => a.cmp(b),
    });
    let mut sorted = Vec::with_capacity(audit.len() + traffic.len());
    let (mut audit, mut traffic) = (audit.into_iter().peekable(), traffic.into_iter().peekable());
    loop {
        let is_audit = match (audit.peek(), traffic.peek()) {
            (None, None) => return sorted,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some((audit, _)), Some((traffic, _))) => comes_first(order, *audit, *traffic),
        };
        sorted.extend(match is_audit {
            true => audit.next(),
            false => traffic.next(),
        });
    }
}

fn cursor(order: Order, audit: &AuditSource, traffic: &TrafficSource) -> Cursor {
    let (piece, index) = traffic.passed;
    Cursor {
        order,
        audit: audit.passed,
        piece,
        index,
    }
}

/// The remaining budget of a page.
struct Budget {
    work: u64,
    work_max: u64,
    until: Instant,
    /// The work at which other tasks run next.
    turn_at: u64,
}

impl Budget {
    fn new(work_max: u64) -> Self {
        Self {
            work: 0,
            work_max,
            until: Instant::now() + TIME_MAX,
            turn_at: TURN_WORK,
        }
    }

    fn is_spent(&self) -> bool {
        self.work >= self.work_max || Instant::now() >= self.until
    }

    fn spend(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let work = bytes.saturating_mul(BYTE_WORK).saturating_add(EVENT_WORK);
        self.work = self.work.saturating_add(work);
    }

    /// Spends the cost of reading the events of a piece.
    fn open(&mut self, n_events: usize) {
        let n_events = u64::try_from(n_events).unwrap_or(u64::MAX);
        let work = n_events.saturating_mul(EVENT_WORK);
        self.work = self.work.saturating_add(work);
    }

    /// Whether the filter matches.
    fn filter(&mut self, filter: &LogFilter, logged: Logged<'_>) -> bool {
        let (holds, units) = filter.matches(logged);
        let bytes = u64::try_from(logged.envelope.len()).unwrap_or(u64::MAX);
        let work = bytes.saturating_mul(FILTER_BYTE_WORK);
        let work = work.saturating_add(units.saturating_mul(FILTER_UNIT_WORK));
        self.work = self.work.saturating_add(work);
        holds
    }

    /// Spends the cost of reading summaries.
    fn summaries(&mut self, n_pieces: usize) {
        let n_pieces = u64::try_from(n_pieces).unwrap_or(u64::MAX);
        let work = n_pieces.saturating_mul(SUMMARY_WORK);
        self.work = self.work.saturating_add(work);
    }

    /// Lets other tasks run after some work.
    async fn turn(&mut self) {
        if self.work >= self.turn_at {
            self.turn_at = self.work.saturating_add(TURN_WORK);
            tokio::task::yield_now().await;
        }
    }
}

/// A matching event that is not yet part of the page.
struct Found {
    at: Timestamp,
    envelope: String,
    endpoint: Option<String>,
    audit: Option<AuditPlace>,
    /// The read position after it is taken, in its log.
    passed: (i64, u32),
}

impl EventQuery {
    fn wants_kind(&self, kind: &str) -> bool {
        let kinds = self.kinds.as_ref();
        kinds.is_none_or(|kinds| kinds.iter().any(|one| one == kind))
    }

    fn wants_time(&self, at: Timestamp) -> bool {
        self.since.is_none_or(|since| since <= at) && self.until.is_none_or(|until| at <= until)
    }

    /// Whether a piece with this summary may have an event of the search.
    fn wants_piece(&self, summary: Option<&[u8]>) -> bool {
        let summary = summary.map_or(Summary::default(), Summary::read);
        let mut kinds = self.kinds.iter().flatten();
        summary.may_have_account(&self.account)
            && (self.kinds.is_none() || kinds.any(|kind| summary.may_have_kind(kind)))
            && (self.object.as_ref()).is_none_or(|endpoint| summary.may_have_endpoint(endpoint))
            && (self.filter.as_ref()).is_none_or(|filter| filter.may_match_piece(&summary))
    }

    fn wants_family(&self, is_traffic: bool) -> bool {
        let may_match = |filter: &LogFilter| match is_traffic {
            true => filter.may_match_piece(&Summary::default()),
            false => filter.may_match_audit(),
        };
        if !self.filter.as_ref().is_none_or(may_match) {
            return false;
        }
        let is_of = |kind: &String| {
            let found = kinds::find(kind);
            found.is_some_and(|kind| kind.family == Family::Traffic) == is_traffic
        };
        self.kinds
            .as_ref()
            .is_none_or(|kinds| kinds.iter().any(is_of))
    }
}

struct AuditSource {
    /// The first of the unread positions; they are empty after the end.
    first: i64,
    last: i64,
    /// Whether the index is used to find objects and actors.
    is_indexed: bool,
    /// Rows that were read, but not examined yet.
    rows: VecDeque<LinkedRow>,
    found: Option<Found>,
    has_stepped: bool,
    /// The last position that was examined without a match, or whose event was taken.
    passed: i64,
    /// The first and the last position of the whole search.
    whole: (i64, i64),
    /// The time of the last row that was examined.
    reached: Option<Timestamp>,
}

impl AuditSource {
    async fn open(plane: &Plane, query: &EventQuery) -> Result<Self, Fault> {
        let passed = query.from.map(|cursor| cursor.audit);
        let mut source = Self {
            first: 1,
            last: 0,
            is_indexed: true,
            rows: VecDeque::new(),
            found: None,
            has_stepped: false,
            passed: passed.unwrap_or(0),
            whole: (1, 0),
            reached: None,
        };
        if !query.wants_family(false) {
            return Ok(source);
        }
        let log = plane.store.audit_log();
        let extent = log.extent().await?;
        (source.first, source.last) = (extent.anchor.seq.saturating_add(1), extent.last);
        let by_name = query.object.is_some() || query.actor.is_some();
        source.is_indexed = !by_name || log.is_indexed().await?;
        // An object or an actor has few events, so their times are compared one by one.
        if !by_name || !source.is_indexed {
            source.narrow(plane, query).await?;
        }
        source.whole = (source.first, source.last);
        match (query.order, passed) {
            (Order::NewestFirst, Some(passed)) => source.last = source.last.min(passed - 1),
            (Order::OldestFirst, Some(passed)) => {
                source.passed = passed.min(extent.last);
                source.first = source.first.max(source.passed.saturating_add(1));
            }
            (Order::NewestFirst, None) => source.passed = source.last.saturating_add(1),
            (Order::OldestFirst, None) => source.passed = source.first.saturating_sub(1),
        }
        Ok(source)
    }

    /// Excludes positions outside of the requested times.
    async fn narrow(&mut self, plane: &Plane, query: &EventQuery) -> Result<(), Fault> {
        use culvert_store::{Bound, RangeError};
        let since = query.since.map(Bound::At);
        let until = query.until.map(Bound::At);
        if since.is_none() && until.is_none() {
            return Ok(());
        }
        let log = plane.store.audit_log();
        let range = log.range(since.as_ref(), until.as_ref(), None).await;
        let range = range.map_err(|error| match error {
            RangeError::Fault(fault) => fault,
            RangeError::Unknown(_) => Fault::bare("finding a time in the audit log"),
        })?;
        self.first = self.first.max(range.first);
        self.last = self.last.min(range.last);
        Ok(())
    }

    fn is_at_end(&self) -> bool {
        self.found.is_none() && self.rows.is_empty() && self.first > self.last
    }

    /// Reads until an event matches or the log ends. Returns false if the budget is used up before.
    async fn fill(
        &mut self,
        plane: &Plane,
        query: &EventQuery,
        budget: &mut Budget,
    ) -> Result<bool, Fault> {
        while !self.is_at_end() && self.found.is_none() {
            // Every page takes at least one step in each log, so searches make progress.
            if self.has_stepped && budget.is_spent() {
                return Ok(false);
            }
            match self.rows.pop_front() {
                Some(row) => {
                    self.has_stepped = true;
                    self.examine(row, query, budget);
                    budget.turn().await;
                }
                None => self.read(plane, query).await?,
            }
        }
        Ok(true)
    }

    async fn read(&mut self, plane: &Plane, query: &EventQuery) -> Result<(), Fault> {
        let key = match (&query.object, &query.actor, query.kinds.as_deref()) {
            (Some(object), _, _) if self.is_indexed => AuditKey::Object(object),
            (_, Some(actor), _) if self.is_indexed => AuditKey::Actor(actor),
            (_, _, Some([kind])) => AuditKey::Kind(kind),
            _ => AuditKey::All,
        };
        let log = plane.store.audit_log();
        let positions = self.first..=self.last;
        let rows = log.page(key, query.order, positions, ROWS).await?;
        let next = rows.last().filter(|_| rows.len() >= ROWS as usize);
        (self.first, self.last) = match (next, query.order) {
            (None, _) => (1, 0),
            (Some(last), Order::NewestFirst) => (self.first, last.row.seq.saturating_sub(1)),
            (Some(last), Order::OldestFirst) => (last.row.seq.saturating_add(1), self.last),
        };
        self.rows = rows.into();
        Ok(())
    }

    fn examine(&mut self, linked: LinkedRow, query: &EventQuery, budget: &mut Budget) {
        let LinkedRow { row, previous } = linked;
        budget.spend(row.body.len());
        let at = Timestamp::from_unix_nanos(row.happened_at);
        self.reached = Some(at);
        let is_named = || {
            let (object, actor) = event_names(&row.body);
            query.object.as_ref().is_none_or(|wanted| *wanted == object)
                && query.actor.as_ref().is_none_or(|wanted| *wanted == actor)
        };
        let by_name = query.object.is_some() || query.actor.is_some();
        let logged = Logged {
            envelope: &row.body,
            endpoint: "",
        };
        let is_wanted = row.account == query.account
            && query.wants_kind(&row.kind)
            && query.wants_time(at)
            && (!by_name || is_named())
            && (query.filter.as_ref()).is_none_or(|filter| budget.filter(filter, logged));
        if !is_wanted {
            self.passed = row.seq;
            return;
        }
        self.found = Some(Found {
            at,
            envelope: row.body,
            endpoint: None,
            audit: Some(AuditPlace {
                position: row.seq,
                hash: row.hash,
                previous,
                happened_at: row.happened_at,
                audience: row.audience,
            }),
            passed: (row.seq, 0),
        });
    }

    fn take(&mut self) -> Option<Found> {
        let found = self.found.take()?;
        self.passed = found.passed.0;
        Some(found)
    }
}

struct TrafficSource {
    /// The first of the unread pieces; they are empty after the end.
    first: i64,
    last: i64,
    /// The index in the first piece at which reading begins or ends.
    resumes: Option<(i64, u32)>,
    /// The next pieces, of which only the summaries were read, without those that are not wanted. The last one stands for
    /// all before it.
    summarized: VecDeque<Candidate>,
    /// How many summaries the next read has.
    n_summaries: u32,
    /// The piece that is being examined.
    opened: Option<OpenedPiece>,
    found: Option<Found>,
    has_stepped: bool,
    /// The position up to which events were examined without a match, or taken.
    passed: (i64, u32),
    /// The first and the last piece of the whole search.
    whole: (i64, i64),
    /// The time of the last piece that was examined.
    reached: Option<Timestamp>,
}

/// A piece whose summary was read.
struct Candidate {
    id: i64,
    last_at: Timestamp,
    /// Whether it may have an event of the search.
    is_wanted: bool,
}

/// A piece with its remaining events.
struct OpenedPiece {
    id: i64,
    events: StoredPiece,
    left: Range<usize>,
}

impl TrafficSource {
    async fn open(plane: &Plane, query: &EventQuery) -> Result<Self, Fault> {
        let resumes = query.from.map(|cursor| (cursor.piece, cursor.index));
        let mut source = Self {
            first: 1,
            last: 0,
            resumes,
            summarized: VecDeque::new(),
            n_summaries: SUMMARIES_FIRST,
            opened: None,
            found: None,
            has_stepped: false,
            passed: resumes.unwrap_or((0, 0)),
            whole: (1, 0),
            reached: None,
        };
        let is_endpoint = |id: &String| id.starts_with("ep_");
        let has_none = query.actor.is_some()
            || !query.wants_family(true)
            || !query.object.as_ref().is_none_or(is_endpoint);
        if has_none {
            return Ok(source);
        }
        let queue = &plane.queue;
        let ends = queue.traffic_ends().await?;
        (source.first, source.last) = (ends.first, ends.settled);
        if query.order == Order::OldestFirst && resumes.is_some_and(|(piece, _)| piece > ends.last)
        {
            source.passed = (ends.last, u32::MAX);
            source.resumes = Some(source.passed);
        }
        if let Some(since) = query.since {
            let first = queue.traffic_since(since).await?;
            source.first = first.map_or(source.last.saturating_add(1), |id| id.max(source.first));
        }
        if let Some(until) = query.until {
            let last = queue.traffic_until(until).await?;
            source.last = last.map_or(source.first.saturating_sub(1), |id| id.min(source.last));
        }
        source.whole = (source.first, source.last);
        match (query.order, source.resumes) {
            (Order::NewestFirst, Some((piece, _))) => source.last = source.last.min(piece),
            (Order::OldestFirst, Some((piece, _))) => source.first = source.first.max(piece),
            (Order::NewestFirst, None) => source.passed = (source.last.saturating_add(1), 0),
            (Order::OldestFirst, None) => source.passed = (source.first, 0),
        }
        Ok(source)
    }

    fn is_at_end(&self) -> bool {
        let has_read = self.summarized.is_empty() && self.opened.is_none();
        self.found.is_none() && has_read && self.first > self.last
    }

    /// Reads until an event matches or the log ends. Returns false if the budget is used up before.
    async fn fill(
        &mut self,
        plane: &Plane,
        query: &EventQuery,
        budget: &mut Budget,
    ) -> Result<bool, Fault> {
        while !self.is_at_end() && self.found.is_none() {
            // Every page takes at least one step in each log, so searches make progress.
            if self.has_stepped && budget.is_spent() {
                return Ok(false);
            }
            if self.opened.is_some() {
                self.has_stepped = true;
                self.examine(query, budget);
                budget.turn().await;
            } else if let Some(candidate) = self.summarized.pop_front() {
                if query.order == Order::NewestFirst || !candidate.is_wanted {
                    self.reached = Some(candidate.last_at);
                }
                let piece = match candidate.is_wanted {
                    true => piece(plane, candidate.id).await?,
                    false => None,
                };
                match piece {
                    Some(piece) => self.open_piece(piece, query.order, budget),
                    // It is not wanted, or was removed.
                    None => {
                        self.has_stepped = true;
                        self.passed = end_of(candidate.id, query.order);
                    }
                }
                budget.turn().await;
            } else {
                self.read(plane, query, budget).await?;
            }
        }
        Ok(true)
    }

    /// Reads the next summaries.
    async fn read(
        &mut self,
        plane: &Plane,
        query: &EventQuery,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        let positions = self.first..=self.last;
        let endpoint = query.object.as_deref();
        let limit = self.n_summaries;
        let queue = &plane.queue;
        let pieces = queue
            .traffic_summaries(endpoint, query.order, positions, limit)
            .await?;
        budget.summaries(pieces.len());
        let next = pieces.last().filter(|_| pieces.len() >= limit as usize);
        (self.first, self.last) = match (next, query.order) {
            (None, _) => (1, 0),
            (Some(last), Order::NewestFirst) => (self.first, last.id.saturating_sub(1)),
            (Some(last), Order::OldestFirst) => (last.id.saturating_add(1), self.last),
        };
        let end = pieces.last().map(|last| last.id);
        let candidates = pieces.into_iter().map(|piece| Candidate {
            id: piece.id,
            last_at: piece.last_at,
            is_wanted: query.wants_piece(piece.summary.as_deref()),
        });
        let is_kept = |candidate: &Candidate| candidate.is_wanted || Some(candidate.id) == end;
        self.summarized = candidates.filter(is_kept).collect();
        let has_wanted = self.summarized.iter().any(|candidate| candidate.is_wanted);
        self.n_summaries = match has_wanted {
            true => SUMMARIES_FIRST,
            false => (limit * 4).min(SUMMARIES_MAX),
        };
        Ok(())
    }

    fn open_piece(&mut self, piece: Piece, order: Order, budget: &mut Budget) {
        let id = piece.id;
        budget.spend(piece.body.as_ref().map_or(0, Vec::len));
        let Some((_, events)) = retained::read(piece) else {
            // A damaged piece is skipped like an empty one.
            self.has_stepped = true;
            self.passed = end_of(id, order);
            return;
        };
        let resumed = self.resumes.filter(|(resumed, _)| *resumed == id);
        let at = |index: u32| usize::try_from(index).map_or(events.len(), |n| n.min(events.len()));
        let left = match (resumed, order) {
            (None, _) => 0..events.len(),
            (Some((_, end)), Order::NewestFirst) => 0..at(end),
            (Some((_, start)), Order::OldestFirst) => at(start)..events.len(),
        };
        budget.open(events.len());
        if order == Order::OldestFirst {
            // Its piece has later events, which are not examined yet.
            let next = left.start.min(events.len().saturating_sub(1));
            let next = events.event(next).and_then(StoredEvent::head);
            self.reached = next.map(|(_, at)| at).or(self.reached);
        }
        self.opened = Some(OpenedPiece { id, events, left });
    }

    /// Examines the next event of the opened piece.
    fn examine(&mut self, query: &EventQuery, budget: &mut Budget) {
        let Some(OpenedPiece { id, events, left }) = &mut self.opened else {
            return;
        };
        let id = *id;
        let index = match query.order {
            Order::NewestFirst => left.next_back(),
            Order::OldestFirst => left.next(),
        };
        let Some((index, event)) = index.and_then(|n| Some((n, events.event(n)?))) else {
            self.passed = end_of(id, query.order);
            self.opened = None;
            return;
        };
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        let passed = match query.order {
            Order::NewestFirst => (id, index),
            Order::OldestFirst => (id, index.saturating_add(1)),
        };
        if query.order == Order::OldestFirst {
            self.reached = event.head().map(|(_, at)| at).or(self.reached);
        }
        budget.spend(0);
        let found = matching(query, event, budget).map(|(at, envelope)| Found {
            at,
            envelope,
            endpoint: (!event.endpoint().is_empty()).then(|| event.endpoint().to_owned()),
            audit: None,
            passed,
        });
        if found.is_none() {
            self.passed = passed;
        }
        self.found = found;
    }

    fn take(&mut self) -> Option<Found> {
        let found = self.found.take()?;
        self.passed = found.passed;
        Some(found)
    }
}

/// A piece by its position; `None` if it was removed.
async fn piece(plane: &Plane, id: i64) -> Result<Option<Piece>, Fault> {
    let pieces = plane
        .queue
        .traffic_pieces(id.saturating_sub(1), id, 1)
        .await?;
    Ok(pieces.into_iter().next())
}

/// The position after all events of a piece: the start of the next piece.
fn end_of(piece: i64, order: Order) -> (i64, u32) {
    match order {
        Order::NewestFirst => (piece.saturating_sub(1), u32::MAX),
        Order::OldestFirst => (piece.saturating_add(1), 0),
    }
}

/// The time and the envelope of a traffic event, if it matches.
fn matching(
    query: &EventQuery,
    event: StoredEvent<'_>,
    budget: &mut Budget,
) -> Option<(Timestamp, String)> {
    let endpoint = event.endpoint();
    if query
        .object
        .as_ref()
        .is_some_and(|wanted| wanted != endpoint)
    {
        return None;
    }
    let (head, at) = event.head()?;
    let is_wanted = head.account_id == query.account
        && query.wants_kind(&head.event_type)
        && query.wants_time(at);
    let filter = query.filter.as_ref();
    let may_match = |filter: &LogFilter| match event {
        StoredEvent::Record(event) => {
            budget.work = budget.work.saturating_add(filter.record_work());
            filter.may_match_record(&event.record, endpoint)
        }
        StoredEvent::Line(_) => true,
    };
    if !is_wanted || !filter.is_none_or(may_match) {
        return None;
    }
    let envelope = event.envelope()?;
    budget.spend(envelope.len());
    let logged = Logged {
        envelope: &envelope,
        endpoint,
    };
    let holds = filter.is_none_or(|filter| budget.filter(filter, logged));
    holds.then(|| (at, envelope.into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_parsed_as_written() {
        for order in [Order::NewestFirst, Order::OldestFirst] {
            let cursor = Cursor {
                order,
                audit: 7,
                piece: i64::MAX,
                index: u32::MAX,
            };
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        for text in [
            "",
            "n",
            "x1-2-3",
            "n1-2",
            "n1-2-3-4",
            "n1-2--3",
            "n+1-2-3",
            "n1-2-4294967296",
            "né",
        ] {
            assert_eq!(text.parse::<Cursor>(), Err(NotACursor), "{text}");
        }
    }
}
