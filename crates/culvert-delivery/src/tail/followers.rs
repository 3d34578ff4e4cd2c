//! Live tails: streams of events as they happen.
//!
//! A tail names kinds, and for traffic kinds fields and a filter. Their fields are captured only while it is open. It
//! buffers at most 1,024 lines or 4 MiB for its reader. A slower reader misses lines and gets their number; no other
//! reader is slowed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use culvert_base::{Class, Event, Refusal, code};
use culvert_events::{Capture, EventKind, Filter, Record, Selection, encode, kinds};

use crate::plane::meters::Meters;

/// Maximum number of lines buffered for a reader.
pub const TAIL_LINES_MAX: usize = 1024;
/// Maximum number of bytes buffered for a reader.
pub const TAIL_BYTES_MAX: usize = 4 << 20;
/// Each owner may have at most one in this many of all open tails.
const OWNER_SHARE: usize = 4;

/// Selects the events of a tail.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct TailSpec {
    /// Only events of this account.
    pub account: String,
    /// The owner of the tail. Each owner has a share of all tails.
    #[serde(skip)]
    pub owner: String,
    /// Names of kinds. If empty: every kind, or with fields or a filter every traffic kind that has
    /// the fields. Names of other than traffic kinds name audit kinds; one that does not exist
    /// selects nothing.
    pub kinds: Vec<String>,
    /// A filter for the traffic kinds; empty: all events.
    pub filter: String,
    /// Fields of the traffic kinds; none: all fields.
    pub fields: Vec<String>,
}

/// An item that a tail returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tailed {
    /// One event: the envelope as one line without its end.
    Event(String),
    /// This many events were missed here.
    Lost(u64),
}

/// One open tail.
#[derive(Debug)]
pub(crate) struct Follower {
    account: String,
    owner: String,
    pub(crate) traffic: Vec<(&'static EventKind, Selection, Option<Filter>)>,
    audit: Audit,
    waiting: Mutex<Waiting>,
    pub(crate) arrived: Notify,
    /// Id and description for other nodes, if they may have traffic for it.
    pub(crate) shared: Option<(String, String)>,
    /// Whether it is open on another node, which reads these lines.
    is_for_another_node: bool,
}

#[derive(Debug)]
enum Audit {
    None,
    All,
    Kinds(Vec<String>),
}

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<String>,
    bytes: usize,
    lost: u64,
}

impl Follower {
    /// A follower of traffic on this node, for a tail that is open on another.
    pub(crate) fn for_another_node(spec: TailSpec) -> Result<Arc<Self>, Refusal> {
        Ok(Arc::new(Self {
            // Every node reads all audit events itself.
            audit: Audit::None,
            is_for_another_node: true,
            ..compile(spec)?
        }))
    }

    /// Notes that events were missed on another node.
    pub(crate) fn miss(&self, lost: u64) {
        if lost > 0 {
            let mut waiting = self.waiting();
            waiting.lost = waiting.lost.saturating_add(lost);
            drop(waiting);
            self.arrived.notify_one();
        }
    }

    pub(crate) fn take(&self) -> Option<Tailed> {
        let mut waiting = self.waiting();
        // Buffered lines are older than the lost ones.
        if let Some(line) = waiting.lines.pop_front() {
            waiting.bytes = waiting.bytes.saturating_sub(line.len());
            return Some(Tailed::Event(line));
        }
        match std::mem::take(&mut waiting.lost) {
            0 => None,
            lost => Some(Tailed::Lost(lost)),
        }
    }

    /// Buffers a line. Returns whether it was accepted.
    pub(crate) fn put(&self, line: String) -> bool {
        let mut waiting = self.waiting();
        let fits = waiting.lines.len() < TAIL_LINES_MAX
            && waiting.bytes.saturating_add(line.len()) <= TAIL_BYTES_MAX
            // After a loss, the reader gets the number of lost lines before newer events.
            && waiting.lost == 0;
        if fits {
            waiting.bytes += line.len();
            waiting.lines.push_back(line);
        } else {
            waiting.lost = waiting.lost.saturating_add(1);
        }
        drop(waiting);
        self.arrived.notify_one();
        fits
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Every open tail.
#[derive(Debug, Default)]
pub(crate) struct Tails {
    followers: ArcSwap<Vec<Arc<Follower>>>,
    /// One writer at a time; readers never wait.
    writing: Mutex<()>,
    n_audit: AtomicUsize,
    changed: Notify,
    opened: Notify,
}

impl Tails {
    pub(crate) fn open(&self, follower: &Arc<Follower>, tails_max: usize) -> Result<(), Refusal> {
        let writing = self
            .writing
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut followers = Vec::clone(&self.followers.load());
        let here = || followers.iter().filter(|open| !open.is_for_another_node);
        let of_owner = here().filter(|open| open.owner == follower.owner);
        let owner_max = tails_max.div_ceil(OWNER_SHARE);
        for (n_open, most, whose) in [
            (here().count(), tails_max, "live tails"),
            (of_owner.count(), owner_max, "live tails of one owner"),
        ] {
            if n_open >= most {
                let why = format!(
                    "The limit of {most} {whose} is reached; close one or try again later."
                );
                return Err(Refusal::uncoded(Class::TooMany, why));
            }
        }
        followers.push(follower.clone());
        self.publish(followers);
        drop(writing);
        if follower.shared.is_some() {
            self.opened.notify_one();
        }
        Ok(())
    }

    /// Registers a tail of another node, which counts towards the limits there.
    pub(crate) fn open_for_another_node(&self, follower: &Arc<Follower>) {
        let writing = self
            .writing
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut followers = Vec::clone(&self.followers.load());
        followers.push(follower.clone());
        self.publish(followers);
        drop(writing);
    }

    /// Completes after a tail was opened for which other nodes may have traffic.
    pub(crate) async fn opened(&self) {
        self.opened.notified().await;
    }

    /// The open tails for which other nodes may have traffic: ids and descriptions.
    pub(crate) fn shared(&self) -> Vec<(String, String, Arc<Follower>)> {
        let followers = self.followers.load();
        let shared = followers.iter().filter_map(|follower| {
            let (id, spec) = follower.shared.clone()?;
            Some((id, spec, follower.clone()))
        });
        shared.collect()
    }

    pub(crate) fn close(&self, follower: &Arc<Follower>) {
        let writing = self
            .writing
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut followers = Vec::clone(&self.followers.load());
        followers.retain(|open| !Arc::ptr_eq(open, follower));
        self.publish(followers);
        drop(writing);
    }

    fn publish(&self, followers: Vec<Arc<Follower>>) {
        let n_audit = followers
            .iter()
            .filter(|follower| !matches!(follower.audit, Audit::None))
            .count();
        self.n_audit.store(n_audit, Ordering::Release);
        self.followers.store(Arc::new(followers));
        self.changed.notify_one();
    }

    /// Completes after a tail was opened or closed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The fields that open tails need of each kind.
    pub(crate) fn captures(&self) -> Vec<(&'static EventKind, Capture)> {
        let mut captures = Vec::new();
        for follower in self.followers.load().iter() {
            for (kind, selection, filter) in &follower.traffic {
                let of_filter = filter.as_ref().map_or(Capture::NONE, Filter::capture);
                captures.push((*kind, selection.capture().union(of_filter)));
            }
        }
        captures
    }

    /// Whether any tail follows audit kinds.
    pub(crate) fn wants_audit(&self) -> bool {
        self.n_audit.load(Ordering::Acquire) > 0
    }

    /// Passes a traffic record to the tails that match it.
    pub(crate) fn record(&self, record: &Record, event_id: &str, meters: &Meters) {
        let followers = self.followers.load();
        for follower in followers
            .iter()
            .filter(|f| *f.account == **record.account())
        {
            for (kind, selection, filter) in &follower.traffic {
                let wanted = kind.name == record.kind().name
                    && filter
                        .as_ref()
                        .is_none_or(|filter| filter.matches(record).unwrap_or(false));
                if !wanted {
                    continue;
                }
                let mut line = Vec::new();
                let _truncated = encode::event(record, selection, event_id, &mut line);
                if let Ok(line) = String::from_utf8(line)
                    && !follower.put(line)
                {
                    meters.tail_lost.add(1);
                }
            }
        }
    }

    /// Passes an audit event to the tails that match it.
    pub(crate) fn event(&self, event: &Event, meters: &Meters) {
        for follower in self.followers.load().iter() {
            let wanted = follower.account == event.account
                && match &follower.audit {
                    Audit::None => false,
                    Audit::All => true,
                    Audit::Kinds(kinds) => kinds.contains(&event.kind),
                };
            if wanted && !follower.put(event.body.clone()) {
                meters.tail_lost.add(1);
            }
        }
    }
}

pub(crate) fn compile(spec: TailSpec) -> Result<Follower, Refusal> {
    let TailSpec {
        account,
        owner,
        kinds: names,
        filter,
        fields,
    } = spec;
    let shaped = !fields.is_empty() || !filter.is_empty();
    let compiled = |kind: &'static EventKind| {
        let selection = match fields.is_empty() {
            true => Selection::all(kind),
            false => Selection::parse(kind, &fields)?,
        };
        let filter = match filter.as_str() {
            "" => None,
            source => Some(Filter::compile(kind, source)?),
        };
        Ok::<_, Refusal>((kind, selection, filter))
    };
    let mut traffic = Vec::new();
    let mut audit = Vec::new();
    if names.is_empty() {
        let mut refused = None;
        for kind in kinds::ALL {
            match compiled(kind) {
                Ok(plan) => traffic.push(plan),
                Err(refusal) => refused = Some(refusal),
            }
        }
        // A field that only some of the kinds have is allowed; a field of no kind is an error.
        if let (true, Some(refusal)) = (traffic.is_empty(), refused) {
            return Err(refusal);
        }
    }
    for name in &names {
        if name.is_empty() || name.len() > 128 {
            return Err(Refusal::of(code::EVENT_TYPE_UNKNOWN));
        }
        match kinds::ALL.iter().find(|kind| kind.name == *name) {
            Some(kind) => traffic.push(compiled(kind)?),
            None if !fields.is_empty() => return Err(Refusal::of(code::FIELDS_NOT_TRAFFIC)),
            None if !filter.is_empty() => return Err(Refusal::of(code::FILTER_NOT_TRAFFIC)),
            None => audit.push(name.clone()),
        }
    }
    let audit = match (names.is_empty(), shaped) {
        (true, true) => Audit::None,
        (true, false) => Audit::All,
        (false, _) if audit.is_empty() => Audit::None,
        (false, _) => Audit::Kinds(audit),
    };
    Ok(Follower {
        account,
        owner,
        traffic,
        audit,
        waiting: Mutex::default(),
        arrived: Notify::new(),
        shared: None,
        is_for_another_node: false,
    })
}
