//! Pages of the kept events, for queries: of the audit log and of the traffic log, merged by time.
//!
//! Each log is read in its own order, in which no event is skipped or repeated whatever its clock said, and of
//! the two next events the one comes that happened next. A cursor says how far each log was read, so pages fit
//! together whatever is written meanwhile.
//!
//! A page costs no more than [`WORK_MAX`] and [`TIME_MAX`], however few events it finds, and concurrent searches
//! are limited. A page that ends early has a cursor to continue with.
//!
//! Not here: which kinds a caller may read, and what a page looks like (control).

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use culvert_base::{Fault, Timestamp};
use culvert_events::{Family, LogFilter, Logged, kinds};
use culvert_store::{AuditKey, LinkedRow, Order, event_names};
use serde::Deserialize;
use tokio::time::Instant;

use crate::plane::Plane;
use crate::retained;

/// Work of one page; a unit is about a nanosecond.
const WORK_MAX: u64 = 250_000_000;
/// Time of one page, where the disk is slow.
const TIME_MAX: Duration = Duration::from_secs(2);
/// Work of looking at an event, at each byte of it, at each byte that a filter reads, and of each unit that a
/// filter spends.
const EVENT_WORK: u64 = 500;
const BYTE_WORK: u64 = 2;
const FILTER_BYTE_WORK: u64 = 6;
const FILTER_UNIT_WORK: u64 = 10;
/// Rows of the audit log in one read.
const ROWS: u32 = 64;
/// Pieces of the traffic log in one read.
const PIECES: u32 = 2;

/// A search of the kept events.
#[derive(Debug)]
pub struct EventQuery {
    /// Only events of this account.
    pub account: String,
    /// Only events of these kinds; of every kind, if `None`.
    pub kinds: Option<Vec<String>>,
    /// Only events that this holds for.
    pub filter: Option<LogFilter>,
    /// Only events that happened no earlier,
    pub since: Option<Timestamp>,
    /// and no later.
    pub until: Option<Timestamp>,
    /// Only audit events about the object with this id, or traffic of the endpoint with it.
    pub object: Option<String>,
    /// Only audit events of the principal with this id.
    pub actor: Option<String>,
    /// The direction.
    pub order: Order,
    /// Where to continue; from the beginning, if `None`.
    pub from: Option<Cursor>,
    /// Events of a page.
    pub limit: usize,
}

/// How far both logs were read, in one direction. Newest first, the events before the positions are left;
/// oldest first, those behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    order: Order,
    /// The row of the audit log that was read last, or beyond which reading begins.
    audit: i64,
    /// The piece of the traffic log that was read last,
    piece: i64,
    /// and how much of it: newest first, the events below this index are left; oldest first, those from it.
    index: u32,
}

/// Events that were found.
#[derive(Debug)]
pub struct EventPage {
    /// In the order that was asked for.
    pub events: Vec<LoggedEvent>,
    /// Where to continue.
    pub next: Cursor,
    /// Whether both logs were read to their end.
    pub is_end: bool,
}

/// An event with what its log knows of it.
#[derive(Clone, Debug)]
pub struct LoggedEvent {
    /// The envelope, exactly as stored.
    pub envelope: String,
    /// `ep_…` of the endpoint whose traffic it is.
    pub endpoint: Option<String>,
    /// Its place in the audit log, if it is in that.
    pub audit: Option<AuditPlace>,
    /// Where to continue behind it.
    pub cursor: Cursor,
}

/// The place of an audit event in the chain.
#[derive(Clone, Debug)]
pub struct AuditPlace {
    /// Position in commit order, without gaps.
    pub position: i64,
    /// Its hash; none until the next write, if a program without a chain wrote it.
    pub hash: Option<String>,
    /// The hash before it.
    pub previous: Option<String>,
    /// Nanoseconds since 1970.
    pub happened_at: i64,
    /// Pairs of subscription and destination, JSON, exactly as stored.
    pub audience: String,
}

/// A text that is no cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cursor is malformed")]
pub struct NotACursor;

impl Cursor {
    /// The direction it continues in.
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

/// The end of both logs: where following begins.
pub(crate) async fn end(plane: &Plane) -> Result<Cursor, Fault> {
    let (_, last) = plane.queue.settled_ends().await?;
    Ok(Cursor {
        order: Order::OldestFirst,
        audit: plane.store.audit_log().extent().await?.last,
        piece: last,
        index: u32::MAX,
    })
}

/// A page of events that match.
pub(crate) async fn page(plane: &Plane, query: &EventQuery) -> Result<EventPage, Fault> {
    page_within(plane, query, WORK_MAX).await
}

/// The same for so much work, or what a first step takes.
pub(crate) async fn page_within(
    plane: &Plane,
    query: &EventQuery,
    work_max: u64,
) -> Result<EventPage, Fault> {
    let mut budget = Budget {
        work: 0,
        work_max,
        until: Instant::now() + TIME_MAX,
    };
    let mut audit = AuditSource::open(plane, query).await?;
    let mut traffic = TrafficSource::open(plane, query).await?;
    let mut events = Vec::new();
    let is_end = loop {
        let is_filled = audit.fill(plane, query, &mut budget).await?
            && traffic.fill(plane, query, &mut budget).await?;
        if !is_filled {
            break false;
        }
        let is_audit = match (audit.found.front(), traffic.found.front()) {
            (None, None) => break true,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(audit), Some(traffic)) => match query.order {
                Order::NewestFirst => audit.at > traffic.at,
                Order::OldestFirst => audit.at <= traffic.at,
            },
        };
        if events.len() >= query.limit {
            break false;
        }
        let found = match is_audit {
            true => audit.take(),
            false => traffic.take(),
        };
        let Some(found) = found else { continue };
        events.push(LoggedEvent {
            envelope: found.envelope,
            endpoint: found.endpoint,
            audit: found.audit,
            cursor: cursor(query.order, &audit, &traffic),
        });
    };
    Ok(EventPage {
        next: cursor(query.order, &audit, &traffic),
        events,
        is_end,
    })
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

/// What a page may still cost.
struct Budget {
    work: u64,
    work_max: u64,
    until: Instant,
}

impl Budget {
    fn is_spent(&self) -> bool {
        self.work >= self.work_max || Instant::now() >= self.until
    }

    fn spend(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let work = bytes.saturating_mul(BYTE_WORK).saturating_add(EVENT_WORK);
        self.work = self.work.saturating_add(work);
    }

    /// Whether the filter holds.
    fn filter(&mut self, filter: &LogFilter, logged: Logged<'_>) -> bool {
        let (holds, units) = filter.matches(logged);
        let bytes = u64::try_from(logged.envelope.len()).unwrap_or(u64::MAX);
        let work = bytes.saturating_mul(FILTER_BYTE_WORK);
        let work = work.saturating_add(units.saturating_mul(FILTER_UNIT_WORK));
        self.work = self.work.saturating_add(work);
        holds
    }
}

/// An event that is wanted and not taken yet.
struct Found {
    at: Timestamp,
    envelope: String,
    endpoint: Option<String>,
    audit: Option<AuditPlace>,
    /// How far its log is read once it is taken, in the positions of that log.
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

    fn wants_family(&self, is_traffic: bool) -> bool {
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
    /// Positions that are not read yet; empty after the end.
    first: i64,
    last: i64,
    /// Whether objects and actors are looked for by index.
    is_indexed: bool,
    found: VecDeque<Found>,
    has_stepped: bool,
    /// The last position that was read and not found, or taken.
    passed: i64,
}

impl AuditSource {
    async fn open(plane: &Plane, query: &EventQuery) -> Result<Self, Fault> {
        let passed = query.from.map(|cursor| cursor.audit);
        let mut source = Self {
            first: 1,
            last: 0,
            is_indexed: true,
            found: VecDeque::new(),
            has_stepped: false,
            passed: passed.unwrap_or(0),
        };
        if !query.wants_family(false) {
            return Ok(source);
        }
        let log = plane.store.audit_log();
        let extent = log.extent().await?;
        (source.first, source.last) = (extent.anchor.seq.saturating_add(1), extent.last);
        let by_name = query.object.is_some() || query.actor.is_some();
        source.is_indexed = !by_name || log.is_indexed().await?;
        // An object or an actor has few events, whose times are compared one by one.
        if !by_name || !source.is_indexed {
            source.narrow(plane, query).await?;
        }
        match (query.order, passed) {
            (Order::NewestFirst, Some(passed)) => source.last = source.last.min(passed - 1),
            (Order::OldestFirst, Some(passed)) => {
                source.first = source.first.max(passed.saturating_add(1));
            }
            (Order::NewestFirst, None) => source.passed = source.last.saturating_add(1),
            (Order::OldestFirst, None) => source.passed = source.first.saturating_sub(1),
        }
        Ok(source)
    }

    /// Leaves out positions by the time that is asked for.
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

    /// Reads until something is found, or the end; false when the budget is spent before.
    async fn fill(
        &mut self,
        plane: &Plane,
        query: &EventQuery,
        budget: &mut Budget,
    ) -> Result<bool, Fault> {
        while self.found.is_empty() && self.first <= self.last {
            // Each page takes a step in each log, so every page comes further.
            if self.has_stepped && budget.is_spent() {
                return Ok(false);
            }
            self.has_stepped = true;
            let key = match (&query.object, &query.actor, query.kinds.as_deref()) {
                (Some(object), _, _) if self.is_indexed => AuditKey::Object(object),
                (_, Some(actor), _) if self.is_indexed => AuditKey::Actor(actor),
                (_, _, Some([kind])) => AuditKey::Kind(kind),
                _ => AuditKey::All,
            };
            let log = plane.store.audit_log();
            let positions = self.first..=self.last;
            let rows = log.page(key, query.order, positions, ROWS).await?;
            let is_last = rows.len() < ROWS as usize;
            for row in rows {
                self.look(row, query, budget);
            }
            if is_last {
                (self.first, self.last) = (1, 0);
            }
            tokio::task::yield_now().await;
        }
        Ok(true)
    }

    fn look(&mut self, linked: LinkedRow, query: &EventQuery, budget: &mut Budget) {
        let LinkedRow { row, previous } = linked;
        match query.order {
            Order::NewestFirst => self.last = row.seq.saturating_sub(1),
            Order::OldestFirst => self.first = row.seq.saturating_add(1),
        }
        budget.spend(row.body.len());
        let at = Timestamp::from_unix_nanos(row.happened_at);
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
        if is_wanted {
            self.found.push_back(Found {
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
        } else if self.found.is_empty() {
            self.passed = row.seq;
        }
    }

    fn take(&mut self) -> Option<Found> {
        let found = self.found.pop_front()?;
        self.passed = found.passed.0;
        Some(found)
    }
}

struct TrafficSource {
    /// Positions of pieces that are not read yet; empty after the end.
    first: i64,
    last: i64,
    /// Of the first piece that is read, the index where its reading begins or ends.
    resumes: Option<(i64, u32)>,
    found: VecDeque<Found>,
    has_stepped: bool,
    /// How far the log was read without finding anything, or taken.
    passed: (i64, u32),
}

#[derive(Deserialize)]
struct Head<'a> {
    event_type: &'a str,
    event_timestamp: &'a str,
    account_id: &'a str,
}

impl TrafficSource {
    async fn open(plane: &Plane, query: &EventQuery) -> Result<Self, Fault> {
        let resumes = query.from.map(|cursor| (cursor.piece, cursor.index));
        let mut source = Self {
            first: 1,
            last: 0,
            resumes,
            found: VecDeque::new(),
            has_stepped: false,
            passed: resumes.unwrap_or((0, 0)),
        };
        let is_endpoint = |id: &String| id.starts_with("ep_");
        let has_none = query.actor.is_some()
            || !query.wants_family(true)
            || !query.object.as_ref().is_none_or(is_endpoint);
        if has_none {
            return Ok(source);
        }
        let queue = &plane.queue;
        (source.first, source.last) = queue.settled_ends().await?;
        if let Some(since) = query.since {
            let first = queue.traffic_since(since).await?;
            source.first = first.map_or(source.last.saturating_add(1), |id| id.max(source.first));
        }
        if let Some(until) = query.until {
            let last = queue.traffic_until(until).await?;
            source.last = last.map_or(source.first.saturating_sub(1), |id| id.min(source.last));
        }
        match (query.order, resumes) {
            (Order::NewestFirst, Some((piece, _))) => source.last = source.last.min(piece),
            (Order::OldestFirst, Some((piece, _))) => source.first = source.first.max(piece),
            (Order::NewestFirst, None) => source.passed = (source.last.saturating_add(1), 0),
            (Order::OldestFirst, None) => source.passed = (source.first, 0),
        }
        Ok(source)
    }

    /// Reads until something is found, or the end; false when the budget is spent before.
    async fn fill(
        &mut self,
        plane: &Plane,
        query: &EventQuery,
        budget: &mut Budget,
    ) -> Result<bool, Fault> {
        while self.found.is_empty() && self.first <= self.last {
            // Each page takes a step in each log, so every page comes further.
            if self.has_stepped && budget.is_spent() {
                return Ok(false);
            }
            self.has_stepped = true;
            let positions = self.first..=self.last;
            let endpoint = query.object.as_deref();
            let queue = &plane.queue;
            let pieces = queue
                .traffic_page(endpoint, query.order, positions, PIECES)
                .await?;
            let is_last = pieces.len() < PIECES as usize;
            for piece in pieces {
                self.look(piece, query, budget);
                tokio::task::yield_now().await;
            }
            if is_last {
                (self.first, self.last) = (1, 0);
            }
        }
        Ok(true)
    }

    fn look(&mut self, piece: culvert_store::Piece, query: &EventQuery, budget: &mut Budget) {
        let id = piece.id;
        let is_newest_first = query.order == Order::NewestFirst;
        match is_newest_first {
            true => self.last = id.saturating_sub(1),
            false => self.first = id.saturating_add(1),
        }
        let resumes = self.resumes.filter(|(resumed, _)| *resumed == id);
        let is_left = |index: u32| match resumes {
            None => true,
            Some((_, end)) if is_newest_first => index < end,
            Some((_, start)) => index >= start,
        };
        let had_found = !self.found.is_empty();
        budget.spend(piece.body.as_ref().map_or(0, Vec::len));
        if let Some((_, batch)) = retained::read(piece) {
            let mut found = VecDeque::new();
            for (index, one) in (0u32..).zip(batch.deliveries()) {
                if !is_left(index) {
                    continue;
                }
                let Ok(envelope) = std::str::from_utf8(one.envelope) else {
                    continue;
                };
                budget.spend(envelope.len());
                let logged = Logged {
                    envelope,
                    endpoint: one.subscription,
                };
                let Some(at) = wanted(query, logged, budget) else {
                    continue;
                };
                let passed = match is_newest_first {
                    true => (id, index),
                    false => (id, index.saturating_add(1)),
                };
                let one = Found {
                    at,
                    envelope: envelope.to_owned(),
                    endpoint: (!one.subscription.is_empty()).then(|| one.subscription.to_string()),
                    audit: None,
                    passed,
                };
                match is_newest_first {
                    true => found.push_front(one),
                    false => found.push_back(one),
                }
            }
            self.found.append(&mut found);
        }
        if !had_found && self.found.is_empty() {
            self.passed = match is_newest_first {
                true => (id, 0),
                false => (id, u32::MAX),
            };
        }
    }

    fn take(&mut self) -> Option<Found> {
        let found = self.found.pop_front()?;
        self.passed = found.passed;
        Some(found)
    }
}

/// When a traffic event happened that is wanted.
fn wanted(query: &EventQuery, logged: Logged<'_>, budget: &mut Budget) -> Option<Timestamp> {
    let is_there = query
        .object
        .as_ref()
        .is_none_or(|endpoint| endpoint == logged.endpoint);
    if !is_there {
        return None;
    }
    let head: Head<'_> = serde_json::from_str(logged.envelope).ok()?;
    let at = Timestamp::parse(head.event_timestamp)?;
    let is_wanted = head.account_id == query.account
        && query.wants_kind(head.event_type)
        && query.wants_time(at)
        && (query.filter.as_ref()).is_none_or(|filter| budget.filter(filter, logged));
    is_wanted.then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_is_written() {
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
