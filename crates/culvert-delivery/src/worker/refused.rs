//! Content that a destination rejects permanently. Finds the rejected events of a batch without one request and one log
//! line for each event when all are rejected.

use std::time::Duration;

use culvert_base::Timestamp;
use culvert_store::{BatchClass, Lease};
use culvert_target::failure::{Failure, FailureClass};

/// After this many events were rejected alike when sent alone, and none accepted, all of them probably are.
const ALIKE: u32 = 8;
/// A destination that rejected nothing for this long and accepts batches has recovered.
const CALM_AFTER: Duration = Duration::from_secs(60);
/// Different reasons that are logged until the destination has recovered.
const REASONS_MAX: usize = 8;

/// How a rejected batch is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SplitMode {
    /// Into halves, to find the rejected events.
    Halves,
    /// Into its first event and the rest: if the first is rejected like all others, so is the rest.
    FirstAlone,
    /// Not at all: every part failed alike.
    Whole,
}

/// A rejected batch whose parts are being sent.
///
/// ```text
/// whole refused ─▶ halves ─▶ … ─▶ single events; 8 refused alike and none taken:
///                  each part that is left is sent once, then its first event alone, then given up whole
/// ```
#[derive(Debug)]
pub(super) struct SplitBatch {
    buffer: BatchClass,
    /// The time of the batch; its parts keep it.
    first_at: Timestamp,
    class: FailureClass,
    code: String,
    /// Events without a final result.
    left: u64,
    /// Events that were rejected alike when sent alone.
    refused: u32,
    /// One was accepted, or rejected for another reason, so each must be sent.
    is_mixed: bool,
    /// The next event is sent alone as a probe for the part behind it.
    is_probing: bool,
    /// The probe was rejected like all others.
    is_probed: bool,
}

impl SplitBatch {
    pub(super) fn of(lease: &Lease, failure: &Failure, events: usize) -> Self {
        Self {
            buffer: lease.class,
            first_at: lease.first_at,
            class: failure.class,
            code: failure.code.clone(),
            left: events as u64,
            refused: 0,
            is_mixed: false,
            is_probing: false,
            is_probed: false,
        }
    }

    /// Whether these events may be a part of the batch.
    pub(super) fn has(&self, lease: &Lease, events: usize) -> bool {
        let is_of_batch = self.buffer == lease.class && self.first_at == lease.first_at;
        is_of_batch && events as u64 <= self.left
    }

    /// Notes that several of its events were rejected together.
    pub(super) fn cut(&mut self, failure: &Failure) -> SplitMode {
        self.look_at(failure);
        if self.is_mixed || self.refused < ALIKE {
            SplitMode::Halves
        } else if std::mem::take(&mut self.is_probed) {
            SplitMode::Whole
        } else {
            self.is_probing = true;
            SplitMode::FirstAlone
        }
    }

    /// Notes that one of its events was rejected alone.
    pub(super) fn refused(&mut self, failure: &Failure) {
        self.look_at(failure);
        self.is_probed = std::mem::take(&mut self.is_probing);
        self.refused = self.refused.saturating_add(1);
    }

    /// Notes that some of its events were accepted.
    pub(super) fn taken(&mut self) {
        self.is_mixed = true;
    }

    /// Notes that this many of its events are settled. Returns whether all are.
    pub(super) fn settled(&mut self, events: usize) -> bool {
        self.left = self.left.saturating_sub(events as u64);
        self.left == 0
    }

    fn look_at(&mut self, failure: &Failure) {
        self.is_mixed |= failure.class != self.class || failure.code != self.code;
    }
}

/// Log state of a destination that rejects events.
#[derive(Debug, Default)]
pub(super) struct Refusing {
    reasons: Vec<(FailureClass, String)>,
    events: u64,
    last_at: Option<Timestamp>,
}

impl Refusing {
    /// Counts dead-lettered events. Returns whether to log: for the first event, and the first of each reason.
    pub(super) fn count(&mut self, failure: &Failure, events: u64, now: Timestamp) -> bool {
        self.events = self.events.saturating_add(events);
        self.last_at = Some(now);
        let is_known = self
            .reasons
            .iter()
            .any(|(class, code)| *class == failure.class && *code == failure.code);
        if is_known || self.reasons.len() >= REASONS_MAX {
            return false;
        }
        self.reasons.push((failure.class, failure.code.clone()));
        true
    }

    /// Notes that a send was accepted. Returns how many events were dead-lettered before, once that is over.
    pub(super) fn calm(&mut self, now: Timestamp) -> Option<u64> {
        let last_at = self.last_at?;
        if now.since(last_at) < CALM_AFTER {
            return None;
        }
        Some(std::mem::take(self).events)
    }
}
