//! Traces of requests: which of them are recorded, what their spans say, and where spans wait for their export.
//!
//! - [`TraceContext`] and [`tracestate`] read what a client says of its trace (W3C Trace Context).
//! - [`Tracer`] decides which requests are recorded, and has the queue of their spans.
//! - [`Trace`] is the trace of one request while it is served.
//! - [`FinishedTrace`] is what the exporter takes from the queue.
//!
//! A request that is not recorded costs nothing beyond its decision. The queue has a limit in spans and one in bytes, of
//! which each endpoint and each owner has a share. What does not fit is dropped and counted; traffic never waits.
//!
//! Not here: the encoding of OTLP and the network (`crates/culvert-destinations/src/spans`), and what the edge measures.

mod context;
mod queue;
mod sampler;
mod span;
mod trace;
mod tracer;

pub use context::{SpanId, TRACEPARENT, TRACESTATE, TraceContext, TraceId, hex, tracestate};
pub use queue::FinishedTrace;
pub use sampler::Sample;
pub use span::{AttributeValue, Span, SpanKind};
pub use trace::{Begun, Outgoing, Trace};
pub use tracer::{Parent, TraceMeters, Tracer, TracerSettings};
