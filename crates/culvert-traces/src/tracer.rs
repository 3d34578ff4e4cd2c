//! Decides which requests are recorded, and keeps what was recorded until it is exported.

use std::sync::Arc;

use culvert_base::{Entropy, Meter};
use http::HeaderValue;
use tokio::time::Instant;

use crate::context::TraceContext;
use crate::queue::{FinishedTrace, Queue};
use crate::sampler::{Sample, Share, Strangers};
use crate::trace::{Begun, Trace};

/// Which requests are recorded, and how many spans may wait.
#[derive(Clone, Copy, Debug)]
pub struct TracerSettings {
    /// The requests that are recorded, if no caller has decided it.
    pub sample: Sample,
    /// Whether a caller decides that.
    pub is_parent_based: bool,
    /// How many requests in each second are recorded because callers that are not trusted ask for it.
    pub parents_per_second: u32,
    /// Spans that may wait for their export.
    pub queue_spans: usize,
    /// Bytes that they may occupy.
    pub queue_bytes: usize,
}

/// Counters of traces.
#[derive(Debug, Default)]
pub struct TraceMeters {
    /// Requests that were recorded.
    pub recorded: Meter,
    /// Requests that were not recorded, though their callers asked for it, because too many did.
    pub parents_refused: Meter,
    /// Requests that were not recorded because the expression that decides it failed.
    pub undecided: Meter,
    /// Spans that were exported.
    pub exported: Meter,
    /// Spans that were dropped because the queue was full.
    pub dropped: Meter,
    /// Spans that were dropped because the receiver could not be reached in time, or refused them.
    pub failed: Meter,
    /// Spans that the receiver rejected in a request that it accepted.
    pub rejected: Meter,
    /// Requests to the receiver that failed and were sent again.
    pub retries: Meter,
}

/// What a request says of its trace.
#[derive(Clone, Debug, Default)]
pub struct Parent {
    /// Its valid `traceparent`.
    pub context: Option<TraceContext>,
    /// Its `tracestate`, if that is not discarded.
    pub state: Option<HeaderValue>,
    /// Whether the peer is a proxy of the operator.
    pub is_trusted: bool,
}

/// Decides which requests are recorded, and has the queue of their spans.
#[derive(Debug)]
pub struct Tracer {
    settings: TracerSettings,
    share: Share,
    strangers: Strangers,
    entropy: Arc<dyn Entropy>,
    pub(crate) queue: Queue,
    meters: TraceMeters,
}

impl Tracer {
    /// A tracer with an empty queue.
    pub fn new(settings: TracerSettings, entropy: Arc<dyn Entropy>) -> Arc<Self> {
        Arc::new(Self {
            share: match settings.sample {
                Sample::Share(share) => Share::new(share),
                Sample::Condition => Share::new(0.0),
            },
            strangers: Strangers::new(settings.parents_per_second, Instant::now()),
            queue: Queue::new(settings.queue_spans, settings.queue_bytes >> 10),
            meters: TraceMeters::default(),
            settings,
            entropy,
        })
    }

    /// Its counters.
    pub fn meters(&self) -> &TraceMeters {
        &self.meters
    }

    /// Spans that wait for their export.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Takes the oldest traces, with at most this many spans together, but at least one trace if there is any.
    pub fn take(&self, spans_max: usize) -> Vec<FinishedTrace> {
        self.queue.take(spans_max)
    }

    /// Waits until this many spans wait. For one task.
    pub async fn filled(&self, spans: usize) {
        self.queue.filled(spans).await;
    }

    /// Whether an expression decides, which needs the request.
    pub fn has_condition(&self) -> bool {
        self.settings.sample == Sample::Condition
    }

    /// Begins the trace of a request, or continues that of its caller. `condition` evaluates the expression that decides
    /// whether it is recorded; `None` if it fails.
    ///
    /// `None` if the request is not recorded and its caller has a trace: then it passes with the fields that it has, so
    /// that the spans of the upstream belong to those of the caller.
    pub fn begin(
        self: &Arc<Self>,
        parent: Parent,
        begun: Begun,
        condition: impl FnOnce() -> Option<bool>,
    ) -> Option<Box<Trace>> {
        let own = TraceContext {
            trace_id: not_zero(self.entropy.bytes()),
            span_id: not_zero(self.entropy.bytes()),
            flags: 0,
        };
        let is_recorded = match (&parent.context, self.settings.is_parent_based) {
            (Some(context), true) if !context.is_sampled() => false,
            (Some(_), true) if parent.is_trusted => true,
            (Some(_), true) => {
                let is_taken = self.strangers.take(begun.at);
                if !is_taken {
                    self.meters.parents_refused.up();
                }
                is_taken
            }
            (context, _) => {
                // A stranger could choose an ID that is always recorded.
                let known = context.filter(|_| parent.is_trusted);
                self.decides(&known.unwrap_or(own), condition)
            }
        };
        if is_recorded {
            self.meters.recorded.up();
        } else if parent.context.is_some() {
            return None;
        }
        Some(Box::new(Trace::new(self, parent, begun, own, is_recorded)))
    }

    fn decides(&self, context: &TraceContext, condition: impl FnOnce() -> Option<bool>) -> bool {
        match self.settings.sample {
            Sample::Share(_) => self.share.has(&context.trace_id),
            Sample::Condition => condition().unwrap_or_else(|| {
                self.meters.undecided.up();
                false
            }),
        }
    }
}

/// An ID of random bytes. Zero would be invalid.
fn not_zero<const N: usize>(mut random: [u8; N]) -> [u8; N] {
    if random == [0; N]
        && let Some(last) = random.last_mut()
    {
        *last = 1;
    }
    random
}
