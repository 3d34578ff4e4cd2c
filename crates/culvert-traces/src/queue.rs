//! The spans that wait for their export.

use std::collections::VecDeque;
use std::sync::Mutex;

use culvert_base::sync::lock;
use culvert_base::{FairPermit, FairPermits, Share};
use http::HeaderValue;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::context::TraceId;
use crate::span::Span;

/// The recorded spans of a request.
#[derive(Debug)]
pub struct FinishedTrace {
    /// The trace that they are part of.
    pub trace_id: TraceId,
    /// Its flags.
    pub flags: u8,
    /// What systems on the way said of it.
    pub state: Option<HeaderValue>,
    /// A moment, and its nanoseconds since 1970.
    pub at: (Instant, u64),
    /// At least one, that of the edge.
    pub spans: Vec<Span>,
    /// The places and the memory that they occupy.
    pub(crate) _room: [FairPermit; 2],
}

impl FinishedTrace {
    /// Nanoseconds since 1970 of a moment of the request.
    pub fn nanos(&self, moment: Instant) -> u64 {
        let (at, nanos) = self.at;
        let since = moment.saturating_duration_since(at).as_nanos();
        nanos.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Queue {
    places: FairPermits,
    kib: FairPermits,
    waiting: Mutex<Waiting>,
    /// Notified of traces, for the exporter, which is one task.
    added: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    traces: VecDeque<FinishedTrace>,
    /// Spans of all traces.
    spans: usize,
}

impl Queue {
    /// With a limit in spans and one in KiB.
    pub(crate) fn new(spans_max: usize, kib_max: usize) -> Self {
        Self {
            places: FairPermits::new(spans_max),
            kib: FairPermits::new(kib_max),
            waiting: Mutex::default(),
            added: Notify::new(),
        }
    }

    /// Room for spans of this many bytes; `None` if the share of their endpoint or its owner is used up.
    pub(crate) fn room(&self, share: Share, bytes: usize, spans: usize) -> Option<[FairPermit; 2]> {
        let places = self.places.try_acquire_many(share, spans).ok()?;
        let kib = bytes.div_ceil(1 << 10).max(1);
        Some([places, self.kib.try_acquire_many(share, kib).ok()?])
    }

    /// Adds a trace, which has room.
    pub(crate) fn add(&self, trace: FinishedTrace) {
        let spans = trace.spans.len();
        let mut waiting = lock(&self.waiting);
        waiting.spans += spans;
        waiting.traces.push_back(trace);
        drop(waiting);
        self.added.notify_one();
    }

    /// Takes the oldest traces, with at most this many spans together, but at least one trace if there is any.
    pub(crate) fn take(&self, spans_max: usize) -> Vec<FinishedTrace> {
        let (mut taken, mut spans) = (Vec::new(), 0);
        let mut waiting = lock(&self.waiting);
        while let Some(next) = waiting.traces.front() {
            let with_next = spans + next.spans.len();
            if with_next > spans_max && !taken.is_empty() {
                break;
            }
            spans = with_next;
            taken.extend(waiting.traces.pop_front());
        }
        waiting.spans -= spans;
        taken
    }

    /// Spans that wait.
    pub(crate) fn len(&self) -> usize {
        lock(&self.waiting).spans
    }

    /// Waits until there are this many spans.
    pub(crate) async fn filled(&self, spans: usize) {
        while self.len() < spans {
            self.added.notified().await;
        }
    }
}
