//! Events of traffic while there is no queue for them: they are counted, and dropped.

use std::sync::atomic::{AtomicU64, Ordering};

use culvert_events::{Capture, EventKind, Record, Recorder};

/// Counts the events that nothing records.
#[derive(Debug, Default)]
pub(super) struct DroppedEvents(AtomicU64);

impl DroppedEvents {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Recorder for DroppedEvents {
    fn capture(&self, _: &'static EventKind) -> Capture {
        Capture::ONE
    }

    fn offer(&self, _: Record) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
