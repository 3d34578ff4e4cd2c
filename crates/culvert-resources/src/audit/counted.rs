//! The refused calls and the reads that are counted, by caller and operation.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use culvert_events::CallContext;
use ipnet::IpNet;

use crate::access::caller::Caller;
use crate::audit::repeated::{OwnerShare, Repeated, ReportLimits, Sample};
use crate::audit::trace::IDS_MAX;

/// The kind of event of refused calls.
pub const REQUEST_REFUSED: &str = "request_refused.v0";

/// Time between two events about the same refusals.
const REFUSALS_EVERY: Duration = Duration::from_secs(60);
/// Limit of the refusals of an owner that are counted one by one, whatever number of keys it has.
const OF_OWNER_MAX: usize = 50;
/// Limits of the events about callers without a valid key: anyone can cause them, as long as they like. So a flood from any
/// number of networks makes at most 30 events a minute, and one for the others of each of the two kinds.
const UNKNOWN: ReportLimits = ReportLimits {
    slow_after: Duration::from_secs(3_600),
    slow_period: Duration::from_secs(3_600),
    per_minute_max: 30,
};
/// Time between two events about the same reads.
const READS_EVERY: Duration = Duration::from_secs(3_600);

/// How many IDs that events had are remembered of a caller, for an hour.
const REPORTED_MAX: usize = 1_000;

/// The refusals and reads that are counted.
#[derive(Debug)]
pub struct Refusals {
    /// Of known callers.
    pub(super) known: Repeated<RefusalKey, RefusalSample>,
    /// Of strangers, apart, so that they cannot hide those of known callers.
    pub(super) unknown: Repeated<RefusalKey, RefusalSample>,
    pub(super) reads: Repeated<ReadKey, ReadSample>,
}

/// Refusals that are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RefusalKey {
    pub(super) kind: &'static str,
    pub(super) from: RefusedFrom,
    /// Empty for unknown callers: they choose it, and could fill the table with it.
    pub(super) operation: String,
    pub(super) code: Option<u16>,
    pub(super) status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum RefusedFrom {
    /// A known caller: its owner and its key.
    Caller(String, String),
    /// Unknown callers from a network: /24 or /64.
    Network(IpNet),
    /// The rest of a known owner's, while too many of it are counted one by one.
    Owner(String),
    /// Any others, while too many are counted one by one.
    Others,
}

#[derive(Clone, Debug)]
pub(super) struct RefusalSample {
    pub(super) caller: Option<Arc<Caller>>,
    pub(super) context: Arc<CallContext>,
    pub(super) operation: String,
    pub(super) object_id: Option<String>,
}

impl Sample for RefusalSample {
    fn add(&mut self, later: Self) {
        *self = later;
    }

    fn emptied(&self) -> Self {
        self.clone()
    }
}

/// Who read, and the IDs that a list showed.
#[derive(Clone, Debug)]
pub(super) struct ReadSample {
    pub(super) caller: Arc<Caller>,
    /// At most [`IDS_MAX`], each once.
    pub(super) ids: Vec<String>,
    /// Of lists that show secrets: the IDs that events had, so that no other one is shown without an event.
    pub(super) reported: Option<BTreeSet<String>>,
}

impl Sample for ReadSample {
    fn add(&mut self, later: Self) {
        self.caller = later.caller;
        for id in later.ids {
            if self.ids.len() < IDS_MAX && !self.ids.contains(&id) {
                self.ids.push(id);
            }
        }
    }

    fn emptied(&self) -> Self {
        let mut emptied = Self {
            caller: Arc::clone(&self.caller),
            ids: Vec::new(),
            reported: self.reported.clone(),
        };
        emptied.take_news(self);
        emptied
    }

    fn take_news(&mut self, later: &Self) -> bool {
        let Some(reported) = &mut self.reported else {
            return false;
        };
        let mut is_news = false;
        for id in &later.ids {
            // Beyond the limit, each list with others is reported.
            is_news |= match reported.len() < REPORTED_MAX {
                true => reported.insert(id.clone()),
                false => !reported.contains(id),
            };
        }
        is_news
    }

    fn may_be_folded(&self) -> bool {
        self.reported.is_none()
    }

    fn unreported(&mut self) {
        if let Some(reported) = &mut self.reported {
            reported.clear();
        }
    }
}

/// Reads that are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ReadKey {
    pub(super) kind: &'static str,
    pub(super) operation: String,
    pub(super) owner_id: String,
    pub(super) key_id: String,
    /// Where it was read from, so that a stolen key does not hide behind its owner.
    pub(super) network: Option<IpNet>,
    pub(super) object_id: String,
}

impl RefusalKey {
    /// What counts for this one and others of the kind.
    fn folded(&self, from: RefusedFrom) -> Self {
        Self {
            kind: self.kind,
            from,
            operation: String::new(),
            code: None,
            status: 0,
        }
    }

    /// What counts for the rest of the owner's.
    fn rest_of_owner(&self) -> Self {
        match &self.from {
            RefusedFrom::Caller(owner, _) => self.folded(RefusedFrom::Owner(owner.clone())),
            _ => self.clone(),
        }
    }

    fn is_of_same_owner(&self, other: &Self) -> bool {
        self.owner().is_some() && self.owner() == other.owner()
    }

    fn owner(&self) -> Option<&str> {
        match &self.from {
            RefusedFrom::Caller(owner, _) | RefusedFrom::Owner(owner) => Some(owner),
            RefusedFrom::Network(_) | RefusedFrom::Others => None,
        }
    }
}

impl Default for Refusals {
    fn default() -> Self {
        // Any others of the same kind.
        let folded = |key: &RefusalKey| key.folded(RefusedFrom::Others);
        let shared = OwnerShare {
            max: OF_OWNER_MAX,
            is_of_same: RefusalKey::is_of_same_owner,
            rest: RefusalKey::rest_of_owner,
        };
        Self {
            known: Repeated::new(REFUSALS_EVERY, folded).shared(shared),
            unknown: Repeated::new(REFUSALS_EVERY, folded).limited(UNKNOWN),
            reads: Repeated::new(READS_EVERY, |key| ReadKey {
                object_id: String::new(),
                network: None,
                key_id: String::new(),
                ..key.clone()
            }),
        }
    }
}
