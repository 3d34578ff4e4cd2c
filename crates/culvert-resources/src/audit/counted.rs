//! The refused calls and the reads that are counted, by caller and operation.

use std::sync::Arc;
use std::time::Duration;

use culvert_events::CallContext;
use ipnet::IpNet;

use crate::access::caller::Caller;
use crate::audit::repeated::{Repeated, ReportLimits, Sample};
use crate::audit::trace::IDS_MAX;

/// The kind of event of refused calls.
pub const REQUEST_REFUSED: &str = "request_refused.v0";

/// Time between two events about the same refusals.
const REFUSALS_EVERY: Duration = Duration::from_secs(60);
/// Limits of the events about callers without a valid key: anyone can cause them, as long as they like. So a flood from any
/// number of networks makes at most 30 events a minute, and one for the others of each of the two kinds.
const UNKNOWN: ReportLimits = ReportLimits {
    slow_after: Duration::from_secs(3_600),
    slow_period: Duration::from_secs(3_600),
    per_minute_max: 30,
};
/// Time between two events about the same reads.
const READS_EVERY: Duration = Duration::from_secs(3_600);

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
        Self {
            caller: Arc::clone(&self.caller),
            ids: Vec::new(),
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

impl Default for Refusals {
    fn default() -> Self {
        // Any others of the same kind.
        let folded = |key: &RefusalKey| RefusalKey {
            kind: key.kind,
            from: RefusedFrom::Others,
            operation: String::new(),
            code: None,
            status: 0,
        };
        Self {
            known: Repeated::new(REFUSALS_EVERY, folded),
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
