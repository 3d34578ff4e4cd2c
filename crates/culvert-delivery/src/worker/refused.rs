//! Content that a destination refuses for good: finding which events of a batch it is about, without one
//! request for each of them where it is all, and without one log line for each.

use std::time::Duration;

use culvert_base::Timestamp;
use culvert_store::{BatchClass, Lease};

use crate::failure::{Failure, FailureClass};

/// So many events sent alone and refused alike, and none taken, make it likely that all are.
const ALIKE: u32 = 8;
/// A destination that has refused nothing for so long and takes what it is sent has recovered.
const CALM_AFTER: Duration = Duration::from_secs(60);
/// Different reasons that are logged before it has recovered.
const REASONS_MAX: usize = 8;

/// How a batch that was refused as a whole is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SplitMode {
    /// In two, to find the events that are refused.
    Halves,
    /// Its first event alone: when that is refused like all others, so is the rest.
    FirstAlone,
    /// Not at all: every part failed alike.
    Whole,
}

/// A refused batch whose parts are being sent.
///
/// ```text
/// whole refused ─▶ halves ─▶ … ─▶ single events; 8 refused alike and none taken:
///                  each part that is left is sent once, then its first event alone, then given up whole
/// ```
#[derive(Debug)]
pub(super) struct SplitBatch {
    buffer: BatchClass,
    /// When the batch came in: its parts keep that.
    first_at: Timestamp,
    class: FailureClass,
    code: String,
    /// Events whose fate is open.
    left: u64,
    /// Events sent alone and refused alike.
    refused: u32,
    /// One was taken, or refused for another reason: each has to be looked at.
    is_mixed: bool,
    /// The next one is sent alone to stand for the part behind it.
    is_probing: bool,
    /// It was refused like all others.
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

    /// Whether these events may be a part of it.
    pub(super) fn has(&self, lease: &Lease, events: usize) -> bool {
        let is_of_batch = self.buffer == lease.class && self.first_at == lease.first_at;
        is_of_batch && events as u64 <= self.left
    }

    /// Several of its events were refused together.
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

    /// One of its events was refused alone.
    pub(super) fn refused(&mut self, failure: &Failure) {
        self.look_at(failure);
        self.is_probed = std::mem::take(&mut self.is_probing);
        self.refused = self.refused.saturating_add(1);
    }

    /// Some of its events were taken.
    pub(super) fn taken(&mut self) {
        self.is_mixed = true;
    }

    /// What became of so many of its events is settled. Whether that was all.
    pub(super) fn settled(&mut self, events: usize) -> bool {
        self.left = self.left.saturating_sub(events as u64);
        self.left == 0
    }

    fn look_at(&mut self, failure: &Failure) {
        self.is_mixed |= failure.class != self.class || failure.code != self.code;
    }
}

/// What the log knows of a destination that refuses events.
#[derive(Debug, Default)]
pub(super) struct Refusing {
    reasons: Vec<(FailureClass, String)>,
    events: u64,
    last_at: Option<Timestamp>,
}

impl Refusing {
    /// Counts events that became dead letters. Whether that is worth a line: the first, and the first of
    /// each reason.
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

    /// A send was taken. How many events became dead letters before, when that is over.
    pub(super) fn calm(&mut self, now: Timestamp) -> Option<u64> {
        let last_at = self.last_at?;
        if now.since(last_at) < CALM_AFTER {
            return None;
        }
        Some(std::mem::take(self).events)
    }
}
